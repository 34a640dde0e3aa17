"""Sparse gradients, over a real switch, controller and rank processes."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[torch]'")

from tests.torch import scenarios


@pytest.mark.parametrize("way", ["hook", "backend"])
def test_sparse_embeddings_train_as_with_gloo(ranks, cluster, way):
    expected, _ = ranks.results(cluster.controller, scenarios.train_embedding, "gloo")[0]
    results = ranks.results(cluster.controller, scenarios.train_embedding, way)
    for parameters, sent in results:
        assert parameters.tobytes() == results[0][0].tobytes()
        np.testing.assert_allclose(parameters, expected, rtol=2e-5, atol=2e-6)
        assert sent < expected.nbytes


def test_sparse_tensors_are_summed(ranks, cluster):
    ranks.results(cluster.controller, scenarios.sum_sparse)
