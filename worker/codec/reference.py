"""What an allreduce must return, stated in plain NumPy and sharing no code with the fast path.

Used by the tests and by the demo's check. It takes whole arrays and several temporaries of their size.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ExactResult:
    """``result``: the array every rank must hold, bit for bit. ``integers``: int64 sums of the quantised
    inputs. ``quantum``: float64, each coordinate's integer step (1 for int32). ``bound``: float64, largest
    |result - exact real-valued sum or mean| that quantising and the final rounding allow."""

    result: NDArray[Any]
    integers: NDArray[np.int64]
    quantum: NDArray[np.float64]
    bound: NDArray[np.float64]


def exact_allreduce(ranks: Sequence[NDArray[Any]], op: str = "sum", block: int = 1 << 18) -> ExactResult:
    """The exact result for the ranks' 1-D arrays (one dtype of float32, float64, int32; all finite).

    Raises OverflowError if an int32 sum does not fit.
    """
    stacked = np.stack(ranks)
    world_size, size = stacked.shape
    if stacked.dtype == np.int32:
        sums = stacked.sum(axis=0, dtype=np.int64)
        result = sums.astype(np.int32)
        if not np.array_equal(result, sums):
            raise OverflowError(f"int32 sum overflows at {int(np.argmax(result != sums))}")
        return ExactResult(result, sums, np.ones(size), np.zeros(size))
    headroom = (world_size - 1).bit_length()  # ceil(log2(world_size))
    shift = np.zeros(size, np.int32)
    is_empty = np.ones(size, bool)
    for start in range(0, size, block):
        part = slice(start, start + block)
        largest = np.abs(stacked[:, part]).max()
        if largest > 0:
            is_empty[part] = False
            shift[part] = 30 - headroom - np.frexp(largest)[1]
    integers = np.rint(np.ldexp(stacked.astype(np.float64), shift)).astype(np.int64).sum(axis=0)
    divisor = world_size if op == "mean" else 1
    with np.errstate(over="ignore", invalid="ignore"):
        result = np.ldexp(integers / divisor, -shift).astype(stacked.dtype)
        ulp = np.spacing(np.abs(result)).astype(np.float64)
    ulp[~np.isfinite(result)] = 0  # beyond the dtype a sum is infinite, as NumPy's would be
    quantum = np.where(is_empty, 0.0, np.ldexp(1.0, -shift))
    # a mean rounds twice: the division in float64, and to the dtype
    bound = quantum * world_size / 2 / divisor + ulp * (1.0 if op == "mean" else 0.5)
    return ExactResult(result, integers, quantum, bound)


def rounded_allreduce(ranks: Sequence[NDArray[Any]], op: str = "sum") -> NDArray[Any]:
    """What the exact codec must return for the ranks' 1-D arrays (float32 or float64, all finite): the sum or
    mean as real numbers, rounded once, half to even.

    Python's fractions, one coordinate after the other: some microseconds for each that is not zero.
    """
    stacked = np.stack(ranks)
    divisor = len(ranks) if op == "mean" else 1
    result = np.zeros(stacked.shape[1], stacked.dtype)
    for i in np.flatnonzero(stacked.any(axis=0)):
        result[i] = _nearest(sum(map(Fraction, stacked[:, i].tolist()), Fraction()) / divisor, stacked.dtype)
    return result


def _nearest(real: Fraction, dtype: Any) -> Any:
    try:
        near = float(real)
    except OverflowError:
        return math.copysign(math.inf, real)
    if dtype != np.float64 and Fraction(near) != real and not np.float64(near).view(np.uint64) & 1:
        # of its two float64 neighbours take the odd one, and rounding that is rounding once
        near = math.nextafter(near, math.inf if real > near else -math.inf)
    with np.errstate(over="ignore"):
        return np.asarray(near, np.float64).astype(dtype)
