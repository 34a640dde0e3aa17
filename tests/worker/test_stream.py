"""Arrays back to back, and half precision in and out."""

import itertools
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchreduce.worker.stream import Result, Stream, narrow, widen


@settings(max_examples=200)
@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6), data=st.data())
def test_values_are_those_of_the_concatenation(sizes, data):
    arrays = [np.arange(sum(sizes[:i]), sum(sizes[: i + 1]), dtype=np.int32) for i in range(len(sizes))]
    stream = Stream(arrays)
    assert stream.size == sum(sizes)
    start = data.draw(st.integers(0, stream.size))
    stop = data.draw(st.integers(start, stream.size))
    if start < stop:
        assert stream.values(start, stop).tolist() == list(range(start, stop))
        number, index = stream.locate(start)
        assert arrays[number][index] == start
    cuts = sorted({0, start, stop, stream.size})
    results = [
        Result(first, last, stream.dtype, partial(np.copyto, src=-np.arange(first, last, dtype=np.int32)))
        for first, last in itertools.pairwise(cuts)
    ]
    stream.write_back(results, (), arrays)
    assert [int(x) for array in arrays for x in array] == [-i for i in range(stream.size)]


@pytest.mark.parametrize("bits", [0x0000, 0x8000, 0x0001, 0x3F80, 0x7F7F, 0xFF7F, 0x7F80, 0x0080, 0x4049])
def test_bfloat16_is_widened_exactly_and_comes_back(bits):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    half = np.array([bits], np.uint16).view(ml_dtypes.bfloat16)
    wide = widen(half)
    assert wide[0] == float(half[0])
    out = np.zeros(1, ml_dtypes.bfloat16)
    narrow(wide, out)
    assert out.view(np.uint16)[0] == bits


HALF = Fraction(1, 2)
NEARLY_NOTHING = Fraction(1, 2**40)


@settings(max_examples=500)
@given(
    bits=st.integers(0, 0x7F7E),
    nudge=st.sampled_from(
        [Fraction(1, 2), Fraction(1, 2) + Fraction(1, 2**40), Fraction(1, 2) - Fraction(1, 2**40)]
    )
    | st.fractions(0, 1),
    negative=st.booleans(),
)
def test_bfloat16_is_rounded_once_to_nearest_even(bits, nudge, negative):
    """Values between two neighbours, also so near the middle that rounding to float32 first would miss."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    low, high = np.array([bits, bits + 1], np.uint16).view(ml_dtypes.bfloat16).astype(np.float64)
    wide = np.array([float(Fraction(low) + (Fraction(high) - Fraction(low)) * nudge)])
    below, above = Fraction(wide[0]) - Fraction(low), Fraction(high) - Fraction(wide[0])
    expected = bits if below < above or (below == above and bits % 2 == 0) else bits + 1
    out = np.zeros(1, ml_dtypes.bfloat16)
    narrow(-wide if negative else wide, out)
    assert out.view(np.uint16)[0] == expected | (0x8000 if negative else 0)


def test_beyond_the_dtype_is_infinity():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in (np.float16, ml_dtypes.bfloat16):
        out = np.zeros(3, dtype)
        narrow(np.array([1e300, -1e300, 3.4e39]), out)
        assert np.isinf(out.astype(np.float32)).all()
