"""The process group backend, over a real switch, controller and rank processes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[torch]'")

from tests.torch import scenarios
from tests.torch.test_hook import SEEDS, assert_alike


def test_unmodified_models_train_as_with_gloo(ranks, cluster):
    expected = ranks.results(cluster.controller, scenarios.train_with_gloo, SEEDS)[0]
    assert_alike(ranks.results(cluster.controller, scenarios.train_with_backend, SEEDS), expected)


def test_bits_of_any_dtype_arrive_as_they_are(ranks, cluster):
    ranks.results(cluster.controller, scenarios.move_bits)


def test_reductions_are_those_of_gloo(ranks, cluster):
    ranks.results(cluster.controller, scenarios.reduce_tensors)


def test_what_cannot_be_done_raises_by_name(ranks, cluster):
    words = ("no send", "reduce_scatter", "no all", "mean of integers", "SumOverflow", "different calls")
    for messages in ranks.results(cluster.controller, scenarios.refused_operations):
        for message, word in zip(messages, words, strict=True):
            assert word in message
