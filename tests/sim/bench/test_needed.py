"""The bound that `bench wire` compares with."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchreduce.sim.bench.gradients import alike, independent
from switchreduce.sim.bench.wire import needed
from switchreduce.worker import codec


@given(st.integers(1, 5000), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_the_bound_counts_supports(size, density, seed):
    """n h(k / n) lies within log2(n + 1) above log2 of the number of supports with k of n coordinates (Cover
    & Thomas, Elements of Information Theory, theorem 11.1.3)."""
    arrays = [np.sign(x) for x in independent(2, size, density, seed)]  # none rounds to zero
    union = int(np.count_nonzero((arrays[0] != 0) | (arrays[1] != 0)))
    found = needed(arrays)
    assert (found.size, found.union) == (size, union)
    supports = math.lgamma(size + 1) - math.lgamma(union + 1) - math.lgamma(size - union + 1)
    slack = 1e-6 * (1 + found.entropy)
    assert (
        supports / math.log(2) - slack
        <= found.entropy
        <= supports / math.log(2) + math.log2(size + 1) + slack
    )
    assert found.bound == found.entropy + 32 * union
    assert found.values["packed"] == 32 * union <= found.values["sketch"]


def test_blocks_are_added_up():
    arrays = alike(2, 2 * codec.BLOCK, 0.05, seed=3)
    halves = [needed([x[part] for x in arrays]) for part in (slice(codec.BLOCK), slice(codec.BLOCK, None))]
    whole = needed(arrays)
    assert whole.union == sum(half.union for half in halves)
    assert whole.entropy == pytest.approx(sum(half.entropy for half in halves))
    assert whole.least_index == sum(half.least_index for half in halves)
    assert whole.least_index > whole.entropy
