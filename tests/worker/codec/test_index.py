"""Every rank finds the same union through any levels, for the bits that it should take."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchreduce.errors import SwitchError, UsageError
from switchreduce.worker import codec

SHAPES = st.sampled_from(codec.SHAPES)


def bitmap(supports, size):
    """uint32 index of a boolean array."""
    padded = np.zeros(codec.index_lanes(size) * 32, bool)
    padded[:size] = supports
    return np.packbits(padded, bitorder="little").view("<u4").astype(np.uint32)


@settings(max_examples=300, deadline=None)
@given(
    size=st.integers(0, 70) | st.sampled_from([4095, 4096, 4097, 12_288, 13_000]),
    density=st.sampled_from([0.0, 0.0005, 0.01, 0.1, 0.5, 1.0]),
    run=st.sampled_from([1, 7, 64, 300]),
    world_size=st.integers(1, 4),
    shape=SHAPES,
    seed=st.integers(0, 2**32 - 1),
)
def test_union_is_the_union(union_search, size, density, run, world_size, shape, seed):
    rng = np.random.default_rng(seed)
    supports = np.repeat(rng.random((world_size, -(-size // run))) < density, run, axis=1)[:, :size]
    union = union_search([bitmap(one, size) for one in supports], size, shape)
    assert union.dtype == np.uint32
    assert np.array_equal(union, np.flatnonzero(supports.any(axis=0)))


@settings(max_examples=200, deadline=None)
@given(data=st.data(), shape=SHAPES, size=st.sampled_from([1, 33, 4096, 5000]))
def test_altered_levels_raise_or_stay_in_the_block(data, shape, size):
    """Whatever comes back, a coordinate outside the block never does."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    search = codec.UnionSearch(bitmap(rng.random(size) < 0.02, size), size, shape)
    try:
        while not search.done:
            guarded = np.full(search.lanes + 2, 0xABABABAB, np.uint32)
            lanes = guarded[1:-1]
            search.write(lanes)
            assert guarded[0] == guarded[-1] == 0xABABABAB
            if data.draw(st.booleans()) and lanes.size:
                lanes[data.draw(st.integers(0, lanes.size - 1))] ^= np.uint32(
                    data.draw(st.integers(1, 2**32 - 1))
                )
            search.read(lanes)
    except SwitchError:
        return
    coordinates = search.coordinates.astype(np.int64)
    assert (np.diff(coordinates) > 0).all()
    assert not coordinates.size or coordinates[-1] < size


def test_bits_beyond_the_block_are_refused():
    search = codec.UnionSearch(np.zeros(2, np.uint32), 35, codec.FLAT)
    with pytest.raises(SwitchError, match="beyond"):
        search.read(np.array([0, 1 << 3], np.uint32))


def test_index_of_another_length_is_refused():
    with pytest.raises(UsageError, match="index"):
        codec.UnionSearch(np.zeros(3, np.uint32), 64, codec.FLAT)


@pytest.mark.parametrize("density", [0.0001, 0.001, 0.01, 0.05, 0.15])
def test_best_shape_is_near_the_entropy(density):
    """Independent coordinates: a level of bits that are set half the time would be the entropy itself."""
    size = 2**20
    x = (np.random.default_rng(5).random(size) < density).astype(np.float32)
    occupancy = codec.look(x)
    assert occupancy.density == pytest.approx(density, rel=0.5)
    place, _ = codec.best_shape(occupancy, 1.0, 0.0)
    search = codec.UnionSearch(bitmap(x != 0, size), size, codec.SHAPES[place])
    bits = 0
    while not search.done:
        lanes = np.empty(search.lanes, np.uint32)
        search.write(lanes)
        search.read(lanes)
        bits += 32 * lanes.size
    entropy = -density * np.log2(density) - (1 - density) * np.log2(1 - density)
    assert bits / size < entropy * {0.0001: 3.5, 0.001: 2.3, 0.01: 1.7}.get(density, 1.65)


def test_clustered_coordinates_take_a_shape_for_clusters():
    rows = np.repeat(np.random.default_rng(6).random(2**14) < 0.01, 64)
    scattered = np.random.default_rng(6).permutation(rows)
    _, bits = codec.best_shape(codec.look(rows.astype(np.float32)), 1.0, 0.0)
    _, bits_if_scattered = codec.best_shape(codec.look(scattered.astype(np.float32)), 1.0, 0.0)
    assert bits < 0.02 < 0.1 < bits_if_scattered


def test_a_round_trip_that_costs_much_keeps_the_index_flat():
    x = (np.random.default_rng(7).random(2**16) < 0.01).astype(np.float32)
    assert codec.SHAPES[codec.best_shape(codec.look(x), 1.0, 1.0)[0]] == codec.FLAT


@pytest.mark.parametrize("size", [0, 1, 100, 12_287, 12_288, 12_289, 200_000])
def test_look_takes_any_size(size):
    occupancy = codec.look(np.ones(size, np.float32))
    assert 0 <= occupancy.density <= 1
    assert occupancy.density == (1.0 if size else 0.0)
