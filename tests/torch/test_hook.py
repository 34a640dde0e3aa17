"""DDP's communication hook, over a real switch, controller and rank processes."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[torch]'")

from switchreduce.worker.codec.reference import rounded_allreduce  # noqa: E402
from tests.torch import scenarios  # noqa: E402
from tests.torch.ranks import Ranks  # noqa: E402

SEEDS = [1, 2, 3]


@pytest.fixture(scope="module")
def with_gloo(ranks, cluster):
    return ranks.results(cluster.controller, scenarios.train_with_gloo, SEEDS)[0]


def assert_alike(results, expected):
    """All ranks have the same parameters, bit for bit, and nearly those expected."""
    for of_rank in results:
        for got, first, wanted in zip(of_rank, results[0], expected, strict=True):
            assert got.tobytes() == first.tobytes()
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)


def test_models_train_as_with_gloo(ranks, cluster, with_gloo):
    assert_alike(ranks.results(cluster.controller, scenarios.train_with_hook, SEEDS, "auto"), with_gloo)


def test_models_train_as_with_gloo_where_packets_are_lost(ranks, lossy_cluster, with_gloo):
    assert_alike(
        ranks.results(lossy_cluster.controller, scenarios.train_with_hook, SEEDS, "packed"), with_gloo
    )


def test_exact_training_is_the_same_bits_in_every_run(ranks, cluster, lossy_cluster, with_gloo):
    first = ranks.results(cluster.controller, scenarios.train_with_hook, SEEDS, "exact")
    again = ranks.results(lossy_cluster.controller, scenarios.train_with_hook, SEEDS, "exact")
    assert_alike(first, with_gloo)
    assert [p.tobytes() for p in first[0]] == [p.tobytes() for p in again[1]]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_exact_gradients_are_the_real_mean_rounded_once(ranks, cluster, dtype):
    results = ranks.results(cluster.controller, scenarios.reduced_gradient, getattr(torch, dtype), "exact")
    expected = rounded_allreduce([as_array(own) for own, _ in results], "mean").tobytes()
    assert [as_array(mean).tobytes() for _, mean in results] == [expected] * 3


def as_array(tensor):
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    return tensor.view(torch.int16).numpy().view(pytest.importorskip("ml_dtypes").bfloat16)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_gradients_are_nearly_the_mean(ranks, cluster, dtype):
    results = ranks.results(cluster.controller, scenarios.reduced_gradient, getattr(torch, dtype), "auto")
    expected = sum(own.double() for own, _ in results) / 3
    step = torch.finfo(getattr(torch, dtype)).eps
    for _, mean in results:
        assert torch.equal(mean, results[0][1])
        assert torch.allclose(mean.double(), expected, rtol=0.51 * step, atol=1e-6)


def test_all_ranks_skip_the_step_in_which_one_overflows(ranks, cluster):
    for after in ranks.results(cluster.controller, scenarios.scale_gradients):
        scales, weights = zip(*after, strict=True)
        assert scales == (1024.0, 512.0, 512.0)
        assert weights[0] == weights[1] != weights[2]
        assert np.isfinite(weights).all()


def test_nonfinite_gradients_can_raise(ranks, cluster):
    for message in ranks.results(cluster.controller, scenarios.raise_nonfinite):
        assert "rank 2 has inf" in message


def test_a_rank_that_dies_is_named_in_the_others_backward(cluster):
    ranks = Ranks(2)
    try:
        survivor, victim = ranks.run(cluster.controller, scenarios.die_in_backward)
    finally:
        ranks.close()
    assert victim is None
    seconds, message = survivor
    assert "RankLostError" in message
    assert "rank 1" in message
    assert seconds < 15
