"""All ranks find the same plan, it always decodes, and it is small."""

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchreduce.errors import UsageError
from switchreduce.worker import codec
from switchreduce.worker.codec.layout import layout_for


def random_union(rng, count, size):
    return np.sort(rng.choice(size, count, replace=False)).astype(np.uint32)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), size=st.integers(1, 3000), limbs=st.sampled_from([1, 2]))
def test_order_peels_every_coordinate_once(data, size, limbs):
    """Each coordinate of the union comes out once, out of a bucket of its own."""
    count = data.draw(st.integers(0, min(size, 400)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    union = random_union(rng, count, size)
    plan = codec.plan_sketch(union, size, limbs)
    assert plan.lanes == plan.buckets * limbs <= size * limbs
    if plan.form is codec.Form.SKETCH:
        coordinates, own = plan.order & 0xFFFFFFFF, plan.order >> 32
        assert np.array_equal(np.sort(coordinates), union)
        assert np.unique(own).size == coordinates.size == count
        assert own.max() < plan.buckets
    elif plan.form is codec.Form.DENSE:
        assert layout_for(count, plan.seed).buckets >= size or plan.seed == 0
    else:
        assert count == plan.lanes == 0


def test_plan_does_not_depend_on_the_workspaces_history():
    rng = np.random.default_rng(3)
    used = codec.Workspace()
    for count in (5000, 3, 70_000, 900):
        union = random_union(rng, count, codec.BLOCK)
        first, again = codec.plan_sketch(union, codec.BLOCK, 1, used), codec.plan_sketch(union, codec.BLOCK)
        assert (first.form, first.seed, first.layout) == (again.form, again.seed, again.layout)
        assert np.array_equal(first.order, again.order)


@pytest.mark.parametrize(
    ("count", "segments", "length", "seed", "checksum"),
    [
        (5, 1, 4, 1, 1158360371),
        (700, 1, 293, 0, 205217312),
        (9000, 32, 326, 0, 507411675),
        (40000, 48, 956, 0, 1764826426),
    ],
)
def test_plan_is_a_contract_between_ranks(count, segments, length, seed, checksum):
    """Ranks on other machines and versions must find this plan: change it only with the packet format."""
    coordinates = np.arange(count) * 6 + np.arange(count) // 3 % 5  # no random generator: those change
    plan = codec.plan_sketch(coordinates.astype(np.uint32), 2**18)
    assert (plan.layout.segments, plan.layout.length, plan.seed) == (segments, length, seed)
    assert zlib.crc32(plan.order.astype("<u8").tobytes()) == checksum


def test_buckets_follow_the_written_rule():
    """The hash in Python integers, against where encode puts a 1."""
    plan = codec.plan_sketch(random_union(np.random.default_rng(0), 9000, 2**18), 2**18)
    segments, length = plan.layout.segments, plan.layout.length
    mask = 2**64 - 1
    for coordinate in (0, 1, 31, 77_777, 2**18 - 1):
        h = (coordinate + plan.seed * 0x9E3779B97F4A7C15) & mask
        h = ((h ^ h >> 33) * 0xFF51AFD7ED558CCD) & mask
        h = ((h ^ h >> 33) * 0xC4CEB9FE1A85EC53) & mask
        h ^= h >> 33
        fields = [h >> shift & 0xFFFF for shift in (48, 0, 16, 32)]
        start = (fields[0] * segments >> 16) * length
        expected = [start + i * length + (fields[1 + i] * length >> 16) for i in range(3)]
        x = np.zeros(2**18, np.int32)
        x[coordinate] = 1
        lanes = np.empty(plan.lanes, np.uint32)
        codec.encode(codec.quantise(x, codec.BlockScale.from_key(np.int32, 1, 1)), plan, lanes)
        assert np.flatnonzero(lanes).tolist() == expected


@pytest.mark.parametrize(
    ("count", "size", "largest_ratio"),
    [
        (1000, 2**18, 1.25),
        (10_000, 2**18, 1.25),
        (50_000, 2**18, 1.20),
        (100_000, 2**19, 1.17),
        (300_000, 2**20, 1.15),
    ],
)
def test_sketch_is_small(count, size, largest_ratio):
    plan = codec.plan_sketch(random_union(np.random.default_rng(count), count, size), size)
    assert plan.form is codec.Form.SKETCH
    assert plan.lanes <= largest_ratio * count


@pytest.mark.parametrize("count", [2, 3, 5, 10, 30, 100, 300, 1000, 3000, 9000, 20_000])
def test_few_seeds_are_tried(count):
    """The success rates that layout.py states, over fixed unions."""
    rng = np.random.default_rng(count)
    workspace = codec.Workspace()
    repeats = 200 if count <= 1000 else 25
    seeds = [
        codec.plan_sketch(random_union(rng, count, 2**17), 2**17, 1, workspace).seed for _ in range(repeats)
    ]
    assert np.mean(seeds) < 0.6
    assert max(seeds) < 16


@pytest.mark.parametrize("pattern", ["run", "comb", "ends"])
@pytest.mark.parametrize("count", [1, 2, 3, 100, 9000])
def test_clustered_unions_peel_as_well(pattern, count):
    size = 2**18
    coordinates = {
        "run": np.arange(count) + 12345,
        "comb": np.arange(count) * (size // count),
        "ends": np.r_[np.arange(count // 2), size - 1 - np.arange(count - count // 2)],
    }[pattern]
    plan = codec.plan_sketch(np.sort(coordinates).astype(np.uint32), size)
    assert plan.form is codec.Form.SKETCH
    assert plan.seed < 8


def test_a_sketch_that_keeps_failing_grows_without_end():
    """So the search ends: at the latest when a sketch would be no smaller than the block."""
    for count in (1, 10, 1000, 50_000):
        sizes = [layout_for(count, tries).buckets for tries in range(0, 8000, 8)]
        assert sizes == sorted(sizes)
        assert sizes[-1] > 20 * sizes[0]


@pytest.mark.parametrize("plan", [codec.plan_sketch, codec.plan_packed])
def test_full_block_is_dense_and_empty_block_is_empty(plan):
    full = plan(np.arange(2048, dtype=np.uint32), 2048, 2)
    assert (full.form, full.lanes) == (codec.Form.DENSE, 4096)
    empty = plan(np.empty(0, np.uint32), 2048, 2)
    assert (empty.form, empty.lanes) == (codec.Form.EMPTY, 0)


def test_packed_is_as_small_as_the_union():
    union = random_union(np.random.default_rng(1), 777, 2**18)
    plan = codec.plan_packed(union, 2**18, 2)
    assert (plan.form, plan.lanes) == (codec.Form.PACKED, 2 * 777)
    assert np.array_equal(plan.coordinates, union)


@pytest.mark.parametrize("plan", [codec.plan_sketch, codec.plan_packed])
def test_union_of_another_type_is_refused(plan):
    with pytest.raises(UsageError, match="union"):
        plan(np.zeros(3, np.int64), 64)
