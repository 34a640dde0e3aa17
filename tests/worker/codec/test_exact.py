"""The exact codec's result is the correctly rounded sum or mean, bit for bit, in any order of the ranks."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from switchreduce.worker import codec
from switchreduce.worker.codec.exact_format import format_of
from tests.worker.codec.exact_switch import (
    bits_list,
    exact_allreduce,
    expected_bits,
    find_union,
    plan_block,
    rounded_bits,
)

try:
    from ml_dtypes import bfloat16
except ImportError:
    bfloat16 = None

FORMATS = [np.float16, np.float32, np.float64] + ([bfloat16] if bfloat16 else [])
WORLD_SIZES = [1, 2, 3, 4, 5, 7, 8, 16, 33, 63, 64]
OPS = st.sampled_from(["sum", "mean"])


def random_ranks(rng, dtype, world_size, size, density, spread):
    """Random significands, signs and exponents; ``spread`` is the range of exponent fields, from anywhere."""
    form = format_of(dtype)
    fields = (1 << form.exponent_bits) - 1  # finite ones
    spread = min(spread, fields)
    lowest = rng.integers(0, fields - spread + 1)
    shape = (world_size, size)
    bits = rng.integers(0, 1 << form.precision - 1, shape).astype(np.uint64)
    if rng.random() < 0.5:  # few bits, so that sums cancel and tie
        bits &= np.uint64((1 << form.precision - 1) - (1 << form.precision - 3))
    bits |= rng.integers(lowest, lowest + spread, shape).astype(np.uint64) << np.uint64(form.precision - 1)
    bits |= rng.integers(0, 2, shape).astype(np.uint64) << np.uint64(form.precision - 1 + form.exponent_bits)
    bits[rng.random(shape) >= density] = 0
    return list(bits.astype(form.bits_type).view(dtype))


@settings(max_examples=100, deadline=None)
@given(
    dtype=st.sampled_from(FORMATS),
    world_size=st.sampled_from(WORLD_SIZES),
    size=st.sampled_from([0, 1, 31, 32, 33, 200, 2049]),
    density=st.sampled_from([0.0, 0.01, 0.05, 0.3, 1.0]),
    spread=st.sampled_from([1, 3, 8, 30, 100, 3000]),
    op=OPS,
    seed=st.integers(0, 2**32 - 1),
)
def test_result_is_correctly_rounded(dtype, world_size, size, density, spread, op, seed):
    rng = np.random.default_rng(seed)
    ranks = random_ranks(rng, dtype, world_size, size, density / (1 + world_size // 8), spread)
    result = exact_allreduce(ranks, op)
    assert bits_list(result) == expected_bits(ranks, op)
    shuffled = [ranks[rank] for rank in rng.permutation(world_size)]
    assert exact_allreduce(shuffled, op).tobytes() == result.tobytes()


@settings(max_examples=100, deadline=None)
@given(data=st.data(), dtype=st.sampled_from([np.float16, np.float32, np.float64]), op=OPS)
def test_any_finite_floats(data, dtype, op):
    """hypothesis likes -0.0, subnormals, the largest floats and halves."""
    world_size = data.draw(st.sampled_from([1, 2, 3, 4, 6]))
    width = np.dtype(dtype).itemsize * 8
    elements = st.floats(allow_nan=False, allow_infinity=False, width=width) | st.just(0.0)
    ranks = list(data.draw(hnp.arrays(dtype, (world_size, data.draw(st.integers(0, 70))), elements=elements)))
    assert bits_list(exact_allreduce(ranks, op)) == expected_bits(ranks, op)


@settings(max_examples=100, deadline=None)
@given(
    world_size=st.sampled_from([2, 3, 8, 20]),
    spread=st.sampled_from([5, 60, 1500]),
    seed=st.integers(0, 2**32 - 1),
)
def test_float64_sum_is_math_fsum(world_size, spread, seed):
    ranks = random_ranks(np.random.default_rng(seed), np.float64, world_size, 300, 0.7, spread)
    ranks = [x / 64 for x in ranks]  # fsum raises where a partial sum overflows
    expected = np.array([math.fsum(column) for column in np.stack(ranks).T])
    assert (exact_allreduce(ranks) + 0.0).tobytes() == (expected + 0.0).tobytes()


@settings(max_examples=100, deadline=None)
@given(data=st.data(), dtype=st.sampled_from(FORMATS), op=OPS)
def test_ties_and_what_breaks_them(data, dtype, op):
    """A value, half its ulp, and the smallest subnormal of either sign or nothing: all cases of rounding, and
    windows over the whole format."""
    form = format_of(dtype)
    bits_type = form.bits_type
    bits = data.draw(st.lists(st.integers(0, form.infinity - 1), min_size=1, max_size=20))
    first = np.array(bits, bits_type)
    half = []
    for one in bits:
        field = max(one >> form.precision - 1, 1)
        half.append(max(field - form.precision, 0) << form.precision - 1 if field > form.precision else 0)
    sign = 1 << form.precision - 1 + form.exponent_bits
    second = np.array(half, bits_type) ^ bits_type(data.draw(st.sampled_from([0, sign])))
    third = np.full(len(bits), data.draw(st.sampled_from([0, 1, sign | 1])), bits_type)
    ranks = [first.view(dtype), second.view(dtype), third.view(dtype)]
    assert bits_list(exact_allreduce(ranks, op)) == expected_bits(ranks, op)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 64])
def test_largest_values(dtype, world_size):
    """Sums overflow to infinity, means of the same do not; with a partner they cancel to +0."""
    form = format_of(dtype)
    largest = np.full(70, form.infinity - 1, form.bits_type).view(dtype)
    for op in ("sum", "mean"):
        ranks = [largest] * world_size
        bits = bits_list(exact_allreduce(ranks, op))
        assert bits == expected_bits(ranks, op)
        assert bits[0] == (form.infinity if op == "sum" and world_size > 1 else form.infinity - 1)
    assert set(bits_list(exact_allreduce([largest, -largest]))) == {0}


def test_smallest_values():
    """Half of the smallest subnormal ties to zero of its sign, more than half rounds away."""
    smallest = np.full(3, 2.0**-149, np.float32)
    zero = np.zeros(3, np.float32)
    assert bits_list(exact_allreduce([smallest, zero], "mean")) == [0, 0, 0]
    assert bits_list(exact_allreduce([-smallest, zero], "mean")) == [1 << 31] * 3
    assert bits_list(exact_allreduce([smallest, smallest, zero], "mean")) == [1, 1, 1]


@pytest.mark.parametrize("dtype", [np.float16] + ([bfloat16] if bfloat16 else []))
@settings(max_examples=50, deadline=None)
@given(world_size=st.sampled_from([1, 3, 4]), op=OPS, seed=st.integers(0, 2**32 - 1))
def test_wide_inputs_round_once_to_a_narrow_result(dtype, world_size, op, seed):
    ranks = random_ranks(np.random.default_rng(seed), np.float32, world_size, 100, 0.7, 254)
    assert bits_list(exact_allreduce(ranks, op, dtype=dtype)) == expected_bits(ranks, op, dtype)


@pytest.mark.parametrize("world_size", [256, 257, 600])
def test_many_ranks(world_size):
    """Digits of few bits: a float32 spreads over three, a float64 over four."""
    rng = np.random.default_rng(world_size)
    for dtype in (np.float32, np.float64):
        ranks = random_ranks(rng, dtype, world_size, 40, 0.5, 20)
        for op in ("sum", "mean"):
            assert bits_list(exact_allreduce(ranks, op)) == expected_bits(ranks, op)


@pytest.mark.parametrize("world_size", [4, 8])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_default_blocks(ranks_of, dtype, world_size):
    """Two full-size blocks and a short one, compared at some of the non-zeros and all zeros."""
    ranks = ranks_of(
        np.random.default_rng(2), dtype, world_size, 2 * codec.BLOCK + 17, 0.05, "uniform", "ordinary"
    )
    result = exact_allreduce(ranks, block=codec.BLOCK)
    stacked = np.stack(ranks)
    chosen = np.flatnonzero(stacked.any(axis=0))[::50]
    columns = [x[chosen] for x in ranks]
    assert bits_list(result[chosen]) == expected_bits(columns, "sum")
    assert not result[~stacked.any(axis=0)].view(format_of(dtype).bits_type).any()


def gradients(rng, world_size, size, alike):
    support = rng.random((world_size, size)) < 0.05
    if alike:
        support[:] = support[0]
    return list(np.where(support, rng.standard_normal((world_size, size)), 0).astype(np.float32))


def lanes_of(ranks):
    """(lanes that travel for a block beyond its union's index, coordinates of the union)."""
    world_size = len(ranks)
    keys = np.maximum.reduce([codec.scan_exact(x, world_size).keys for x in ranks])
    scale = codec.ExactScale.from_keys(ranks[0].dtype, keys[:, 0], world_size)
    digits, plan, union = plan_block(ranks, scale, codec.Workspace())
    lanes = plan.lanes
    searches = [codec.UnionSearch(block.index, block.size, scale.digit_shape) for block in digits]
    while scale.has_digit_index and not searches[0].done:
        sent = [np.empty(search.lanes, np.uint32) for search in searches]
        for search, part in zip(searches, sent, strict=True):
            search.write(part)
        lanes += sent[0].size
        for search in searches:
            search.read(np.bitwise_or.reduce(sent))
    return lanes, union.size


@pytest.mark.parametrize(("alike", "most"), [(True, 1.3), (False, 1.2)])
def test_gradients_take_little_more_than_a_lane_a_coordinate(alike, most):
    lanes, count = lanes_of(gradients(np.random.default_rng(0), 4, 2**17, alike))
    assert lanes <= most * count


def test_one_outlier_costs_bits():
    """A value whose bits are far below all others adds limbs, but only to itself."""
    ranks = gradients(np.random.default_rng(0), 4, 2**17, True)
    without, count = lanes_of(ranks)
    ranks[2][5] = 1e-30
    with_outlier, _ = lanes_of(ranks)
    assert with_outlier < without + 0.05 * count
    assert bits_list(exact_allreduce(ranks)[:500]) == expected_bits([x[:500] for x in ranks], "sum")


def test_short_windows_take_one_lane_and_no_digit_index():
    rng = np.random.default_rng(0)
    ranks = [rng.integers(-1000, 1000, 5000).astype(np.float32) for _ in range(64)]
    assert lanes_of(ranks)[0] == lanes_of(ranks)[1]
    assert np.array_equal(exact_allreduce(ranks), np.sum(ranks, axis=0))


def test_reference_rounds_like_the_hardware():
    """The tests' own rounding, against NumPy's conversions from float64."""
    rng = np.random.default_rng(0)
    values = np.ldexp(rng.standard_normal(2000), rng.integers(-160, 130, 2000))
    for dtype in (np.float16, np.float32):
        with np.errstate(over="ignore"):
            expected = bits_list(values.astype(dtype))
        assert [rounded_bits(Fraction(value), dtype) for value in values] == expected
    assert find_union([np.array([5], np.uint32)], 3).tolist() == [0, 2]
