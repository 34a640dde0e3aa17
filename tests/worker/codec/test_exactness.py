"""Every result is the reference's, bit for bit, and within the documented error of the real sum."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from switchreduce.worker import codec

SIZES = [0, 1, 2, 31, 32, 33, 63, 64, 65, 1000, 2047, 2048, 2049, 4096, 5000]
WORLD_SIZES = [1, 2, 3, 4, 7, 16, 64]
DTYPES = st.sampled_from([np.float32, np.float64])
FORMS = st.sampled_from(["sketch", "packed", "dense"])
SHAPES = st.sampled_from(codec.SHAPES)


def same_bits(a, b):
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


@settings(max_examples=150, deadline=None)
@given(
    dtype=DTYPES,
    world_size=st.sampled_from(WORLD_SIZES),
    size=st.sampled_from(SIZES),
    density=st.sampled_from([0.0, 0.001, 0.01, 0.05, 0.2, 0.5, 0.8, 1.0]),
    support=st.sampled_from(["uniform", "clustered", "equal", "disjoint"]),
    magnitude=st.sampled_from(["ordinary", "mixed", "tiny", "large"]),
    op=st.sampled_from(["sum", "mean"]),
    form=FORMS,
    shape=SHAPES,
    seed=st.integers(0, 2**32 - 1),
)
def test_float_result_is_the_references(
    allreduce, ranks_of, dtype, world_size, size, density, support, magnitude, op, form, shape, seed
):
    rng = np.random.default_rng(seed)
    ranks = ranks_of(rng, dtype, world_size, size, density, support, magnitude)
    result, overflow = allreduce(ranks, op, form=form, shape=shape)
    assert overflow == -1
    assert same_bits(result, codec.exact_allreduce(ranks, op, block=2048).result)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), dtype=DTYPES, op=st.sampled_from(["sum", "mean"]), form=FORMS, shape=SHAPES)
def test_any_finite_floats(allreduce, data, dtype, op, form, shape):
    """hypothesis likes -0.0, subnormals, the largest floats and halves."""
    world_size = data.draw(st.sampled_from([1, 2, 3, 4]))
    width = np.dtype(dtype).itemsize * 8
    elements = st.floats(allow_nan=False, allow_infinity=False, width=width) | st.just(0.0)
    stacked = data.draw(hnp.arrays(dtype, (world_size, data.draw(st.integers(0, 70))), elements=elements))
    result, _ = allreduce(list(stacked), op, form=form, shape=shape)
    reference = codec.exact_allreduce(stacked, op, block=2048)
    assert same_bits(result, reference.result)
    divisor = world_size if op == "mean" else 1
    for got, bound, column in zip(result, reference.bound, stacked.T, strict=True):
        exact = sum(map(Fraction, column.tolist())) / divisor
        if math.isfinite(got) and math.isfinite(bound):
            assert abs(Fraction(float(got)) - exact) <= Fraction(float(bound)) * Fraction(1 + 1e-12)
        elif not math.isfinite(got):
            assert abs(exact) > Fraction(float(np.finfo(dtype).max)) * Fraction(1 - 1e-6)


EXTREMES = [1.0, -1.0, 0.0, -0.0, 1 - 2.0**-24]
EXTREMES_32 = [*EXTREMES, 3.4e38, 2.0**-126, 2.0**-149]
EXTREMES_64 = [*EXTREMES, 1 - 2.0**-53, 1.7e308, 1e-300, 2.0**-1022, 2.0**-1074]


@pytest.mark.parametrize(
    ("dtype", "value"), [(np.float32, v) for v in EXTREMES_32] + [(np.float64, v) for v in EXTREMES_64]
)
@pytest.mark.parametrize("world_size", [1, 3, 64])
def test_equal_extremes_on_all_ranks(allreduce, dtype, value, world_size):
    """The largest integers the scale allows, all of one sign, on all ranks; and every edge of the dtypes."""
    x = np.full(300, value, dtype)
    x[::3] = 0
    for op in ("sum", "mean"):
        result, _ = allreduce([x] * world_size, op)
        reference = codec.exact_allreduce([x] * world_size, op, block=2048)
        assert same_bits(result, reference.result)
        assert np.abs(reference.integers).max() <= 2**30
        assert not np.signbit(result[::3]).any()


@settings(max_examples=150, deadline=None)
@given(
    world_size=st.sampled_from(WORLD_SIZES),
    size=st.sampled_from(SIZES),
    density=st.sampled_from([0.0, 0.01, 0.2, 1.0]),
    support=st.sampled_from(["uniform", "clustered", "equal", "disjoint"]),
    magnitude=st.sampled_from(["ordinary", "mixed", "large"]),
    form=FORMS,
    shape=SHAPES,
    seed=st.integers(0, 2**32 - 1),
)
def test_int32_is_exact_or_overflows(
    allreduce, ranks_of, world_size, size, density, support, magnitude, form, shape, seed
):
    rng = np.random.default_rng(seed)
    ranks = ranks_of(rng, np.int32, world_size, size, density, support, magnitude)
    result, overflow = allreduce(ranks, form=form, shape=shape)
    exact = np.sum(ranks, axis=0, dtype=np.int64)
    too_large = np.flatnonzero((exact > 2**31 - 1) | (exact < -(2**31)))
    if too_large.size:
        assert overflow == too_large[0]
    else:
        assert overflow == -1
        assert np.array_equal(result, exact)


@pytest.mark.parametrize("form", ["sketch", "packed", "dense"])
@pytest.mark.parametrize(
    ("addends", "fits"),
    [
        ([2**30, 2**30 - 1], True),
        ([2**30, 2**30], False),
        ([-(2**30), -(2**30)], True),
        ([-(2**30), -(2**30) - 1], False),
        ([2**31 - 1, 0], True),
        ([2**31 - 1, 1], False),
        ([-(2**31), 0], True),
        ([-(2**31), -1], False),
        ([-(2**31), -(2**31)], False),
        ([2**31 - 1, 2**31 - 1, -(2**31), 1], True),
        ([-(2**31)], True),
    ],
)
def test_int32_overflow_is_exact_at_the_edge(allreduce, addends, fits, form):
    ranks = [np.zeros(100, np.int32) for _ in addends]
    for x, addend in zip(ranks, addends, strict=True):
        x[[41, 7, 99]] = addend, 5, -addend if addend != -(2**31) else 0
        x[99] = 0
    result, overflow = allreduce(ranks, form=form)
    assert overflow == (-1 if fits else 41)
    if fits:
        assert result[41] == sum(addends)
    else:
        assert (result == 77).all(), "an overflowing block must leave the output alone"


def test_bucket_sums_may_wrap(allreduce):
    """Three placements each and fewer lanes than that: some bucket adds two values of 2**31 - 1."""
    x = np.zeros(2048, np.int32)
    x[np.random.default_rng(5).choice(2048, 900, replace=False)] = 2**31 - 1
    plan = codec.plan_sketch(np.flatnonzero(x).astype(np.uint32), x.size)
    assert plan.form is codec.Form.SKETCH
    assert plan.buckets < 3 * 900
    result, overflow = allreduce([x])
    assert overflow == -1
    assert np.array_equal(result, x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_default_blocks(allreduce, ranks_of, dtype):
    """Two full-size blocks and a short one, with spatially coupled sketches."""
    rng = np.random.default_rng(11)
    ranks = ranks_of(rng, dtype, 4, 2 * codec.BLOCK + 17, 0.05, "uniform", "ordinary")
    for form, shape in (("sketch", codec.FLAT), ("packed", codec.SHAPES[0]), ("packed", (4, 1))):
        result, _ = allreduce(ranks, block=codec.BLOCK, form=form, shape=shape)
        assert same_bits(result, codec.exact_allreduce(ranks).result)


def test_infinite_sum_is_infinity(allreduce):
    x = np.full(5, np.finfo(np.float32).max)
    with np.errstate(over="ignore"):
        result, _ = allreduce([x, x])
        mean, _ = allreduce([x, x], "mean")
    assert np.isposinf(result).all()
    assert mean == pytest.approx(x, rel=1e-6)
