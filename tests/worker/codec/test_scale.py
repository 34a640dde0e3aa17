"""Keys, scales, and which coordinates count as zero."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchreduce.errors import MismatchError, UsageError
from switchreduce.worker import codec

FLOATS = [np.float32, np.float64]


@settings(max_examples=100, deadline=None)
@given(
    dtype=st.sampled_from([*FLOATS, np.int32]),
    size=st.sampled_from([0, 1, 2047, 2048, 2049, 7000]),
    magnitude=st.sampled_from(["ordinary", "mixed", "tiny", "large"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_key_bounds_the_block(ranks_of, dtype, size, magnitude, seed):
    rng = np.random.default_rng(seed)
    (x,) = ranks_of(rng, dtype, 1, size, rng.random() ** 4, "uniform", magnitude)
    found = codec.scan(x, 2048)
    assert found.first_nonfinite == -1
    assert found.keys.dtype == np.uint32
    assert found.keys.size == codec.block_count(size, 2048)
    for number, key in enumerate(found.keys.tolist()):
        largest = np.abs(x[number * 2048 : (number + 1) * 2048].astype(np.float64)).max()
        if dtype == np.int32 or largest == 0:
            assert key == largest
        else:
            exponent = key - 1074
            assert np.frexp(largest)[1] == exponent


def test_int32_minimum_has_a_key():
    assert codec.scan(np.array([-(2**31), 5], np.int32)).keys.tolist() == [2**31]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [0, 31, 2047, 2048, 4999])
def test_first_nonfinite_is_found(dtype, value, where):
    x = np.ones(5000, dtype)
    x[[where, -1]] = value
    assert codec.scan(x, 2048).first_nonfinite == where


@pytest.mark.parametrize("dtype", FLOATS)
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_index_is_where_the_rounded_value_is_not_zero(dtype, data):
    """At half a quantum and one float to either side, for every scale a block can have."""
    limits = np.finfo(dtype)
    world_size = data.draw(st.sampled_from([1, 2, 3, 64]))
    exponent = data.draw(st.integers(limits.minexp - limits.nmant + 1, limits.maxexp))
    scale = codec.BlockScale.from_key(dtype, exponent + 1074, world_size)
    half = np.ldexp(dtype(1), -scale.shift - 1)
    x = np.array([half, np.nextafter(half, dtype(0)), np.nextafter(half, dtype(np.inf)), 3 * half, 0], dtype)
    x = np.concatenate([x, -x, np.zeros(30, dtype)])  # a whole lane and a partial one
    x[31:36] = x[:5]
    block = codec.quantise(x, scale)
    expected = np.rint(np.ldexp(x.astype(np.float64), scale.shift)).astype(np.int64)
    assert np.array_equal(np.flatnonzero(expected), block.coordinates)
    assert np.array_equal(expected[expected != 0], block.values)
    bits = np.unpackbits(block.index.astype("<u4").view(np.uint8), bitorder="little")
    assert np.array_equal(np.flatnonzero(bits), block.coordinates)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), dtype=st.sampled_from([*FLOATS, np.int32]))
def test_dense_lanes_are_the_same_either_way(ranks_of, data, dtype):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    magnitude = data.draw(st.sampled_from(["ordinary", "mixed", "large"]))
    (x,) = ranks_of(rng, dtype, 1, 1500, 0.4, "uniform", magnitude)
    scale = codec.BlockScale.from_key(dtype, int(codec.scan(x).keys[0]), 5)
    plan = codec.plan_dense(x.size, scale.limbs)
    direct, listed = np.empty(plan.lanes, np.uint32), np.empty(plan.lanes, np.uint32)
    codec.encode_values(x, scale, direct)
    codec.encode(codec.quantise(x, scale), plan, listed)
    assert np.array_equal(direct, listed)


def test_limbs_only_when_a_sum_could_overflow():
    limbs = {key: codec.BlockScale.from_key(np.int32, key, 4).limbs for key in (1, 2**29 - 1, 2**29, 2**31)}
    assert limbs == {1: 1, 2**29 - 1: 1, 2**29: 2, 2**31: 2}


@pytest.mark.parametrize("world_size", [0, -1, 2**15 + 1])
def test_impossible_world_size(world_size):
    with pytest.raises(UsageError, match="world size"):
        codec.BlockScale.from_key(np.float32, 1000, world_size)


@pytest.mark.parametrize(("dtype", "key"), [(np.float32, 1203), (np.float64, 2099), (np.int32, 2**31 + 1)])
def test_key_of_another_dtype(dtype, key):
    codec.BlockScale.from_key(dtype, key - 1, 4)
    with pytest.raises(MismatchError, match="do all ranks use"):
        codec.BlockScale.from_key(dtype, key, 4)


@pytest.mark.parametrize(
    "x",
    [
        np.zeros(4, np.float16),
        np.zeros(4, np.int64),
        np.zeros(4, ">f4"),
        np.zeros((2, 2), np.float32),
        np.zeros(8, np.float32)[::2],
    ],
)
def test_arrays_the_codec_does_not_take(x):
    with pytest.raises(UsageError):
        codec.scan(x)


@pytest.mark.parametrize("block", [0, -2048, 1000, 2**31])
def test_impossible_block_size(block):
    with pytest.raises(UsageError, match="block size"):
        codec.scan(np.zeros(4, np.float32), block)
