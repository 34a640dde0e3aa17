"""A sketch made before its union is known decodes exactly, however wrong the guess was."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchreduce.errors import SwitchError
from switchreduce.worker import codec

SIZE = 6000


def sent_blind(ranks, scale, expected):
    """(plan, rest, sums of the sketch, sums of the rest) that every rank has after two rounds."""
    blocks = [codec.quantise(x, scale) for x in ranks]
    union = np.flatnonzero(np.any([x != 0 for x in ranks], axis=0)).astype(np.uint32)
    blind = codec.plan_blind(expected, SIZE)
    sketches = np.full((len(ranks), blind.lanes), 99, np.uint32)
    for block, lanes in zip(blocks, sketches, strict=True):
        codec.encode(block, blind, lanes)
    plan, rest = codec.peel_blind(blind, union, codec.Workspace())
    rests = np.full((len(ranks), rest.size), 99, np.uint32)
    if rest.size:
        for block, lanes in zip(blocks, rests, strict=True):
            codec.encode(codec.part_of(block, rest), codec.plan_packed(rest, SIZE), lanes)
    return plan, rest, sketches.sum(axis=0, dtype=np.uint32), rests.sum(axis=0, dtype=np.uint32)


@settings(max_examples=150, deadline=None)
@given(
    dtype=st.sampled_from([np.float32, np.float64, np.int32]),
    world_size=st.sampled_from([1, 3, 64]),
    count=st.sampled_from([0, 1, 5, 400, 5999]),
    guess=st.sampled_from([0.0, 0.3, 0.9, 1.0, 3.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_result_is_the_references(dtype, world_size, count, guess, seed):
    rng = np.random.default_rng(seed)
    ranks = []
    for _ in range(world_size):
        x = np.zeros(SIZE, dtype)
        where = rng.choice(SIZE, count, replace=False)
        x[where] = rng.integers(-1000, 1000, count) if dtype == np.int32 else rng.standard_normal(count)
        ranks.append(x)
    key = max(int(codec.scan(x).keys[0]) for x in ranks)
    scale = codec.BlockScale.from_key(dtype, key, world_size)
    if scale.is_empty:
        return
    plan, rest, sums, rest_sums = sent_blind(ranks, scale, round(count * guess))
    for op in ("sum", "mean") if dtype != np.int32 else ("sum",):
        out = np.full(SIZE, 77, dtype)
        codec.write(codec.collect_blind(sums.copy(), plan, rest, rest_sums), scale, out, op)
        assert out.tobytes() == codec.exact_allreduce(ranks, op).result.tobytes()


def test_a_right_guess_almost_always_peels():
    rng = np.random.default_rng(1)
    for count in (20, 100, 1000, 9000):
        stalls = 0
        for _ in range(50):
            union = np.sort(rng.choice(2**18, count, replace=False)).astype(np.uint32)
            _, rest = codec.peel_blind(codec.plan_blind(count, 2**18), union, codec.Workspace())
            stalls += rest.size > 0
        assert stalls <= 5


@pytest.mark.parametrize("guess", [100, 500])
def test_altered_sums_are_noticed(guess):
    x = np.zeros(SIZE, np.float32)
    x[::15] = 1.5
    scale = codec.BlockScale.from_key(np.float32, int(codec.scan(x).keys[0]), 1)
    plan, rest, sums, rest_sums = sent_blind([x], scale, guess)
    assert (rest.size > 0) == (guess == 100)
    for array in (sums, rest_sums):
        for lane in range(0, array.size, 37):
            array[lane] ^= 1 << 7
            with pytest.raises(SwitchError, match="contradict"):
                codec.collect_blind(sums.copy(), plan, rest, rest_sums)
            array[lane] ^= 1 << 7
