"""The arrays of one call as one run of coordinates; and half precision on its way in and out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from switchreduce.worker import codec
from switchreduce.worker.codec import Scan

# Half precision is added as float64, which holds it and every sum of it in fixed point exactly, so that the
# result is rounded once. bfloat16 is ml_dtypes' (and JAX's); it needs no import here.
_HALVES = ("float16", "bfloat16")
DTYPES = (*(dtype.name for dtype in codec.DTYPES), *_HALVES)


@dataclass(frozen=True)
class Result:
    """What coordinates [start, stop) come to: ``write`` writes it to an array of ``dtype``.

    ``is_empty``: nothing but zeros, as is known without looking.
    """

    start: int
    stop: int
    dtype: np.dtype
    write: Callable[[np.ndarray], None]
    is_empty: bool = False


@dataclass(frozen=True)
class Marks:
    """Where values are not finite: int64 coordinates of a stream, ascending.

    ``up``: +inf and NaN, ``down``: -inf and NaN, for NaN is what both of them sum to.
    """

    up: np.ndarray
    down: np.ndarray


NO_MARKS = Marks(np.empty(0, np.int64), np.empty(0, np.int64))


class Stream:
    """Arrays of one of DTYPES, back to back in their order.

    ``dtype`` is theirs, ``wide`` the codec's for them. Makes a copy of arrays that are not contiguous.
    """

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self.dtype = arrays[0].dtype
        self.wide = wide_dtype(self.dtype)
        self._shapes = [array.shape for array in arrays]
        self._pieces = [
            np.require(np.asarray(array), requirements=["C", "A"]).reshape(-1) for array in arrays
        ]
        self._ends = list(accumulate(piece.size for piece in self._pieces))

    @property
    def size(self) -> int:
        """Coordinates of all arrays together."""
        return self._ends[-1]

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def values(self, start: int, stop: int) -> np.ndarray:
        """Coordinates [start, stop) as a contiguous array of dtype ``wide``: a view where one can be had."""
        raw = self.raw(start, stop)
        return raw if self.wide == self.dtype else widen(raw)

    def raw(self, start: int, stop: int) -> np.ndarray:
        """Coordinates [start, stop) as a contiguous array of the arrays' own dtype."""
        parts = list(self._parts(start, stop))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _parts(self, start: int, stop: int) -> Iterator[np.ndarray]:
        number = bisect_right(self._ends, start)
        while True:
            offset = self._ends[number] - self._pieces[number].size
            yield self._pieces[number][max(start - offset, 0) : stop - offset]
            if stop <= self._ends[number] or number + 1 == len(self._ends):
                return
            number += 1

    def locate(self, coordinate: int) -> tuple[int, tuple[int, ...]]:
        """(which array, index in it) of a coordinate."""
        number = bisect_right(self._ends, coordinate)
        inside = coordinate - (self._ends[number] - self._pieces[number].size)
        return number, tuple(int(i) for i in np.unravel_index(inside, self._shapes[number]))

    def scan(self, block: int = codec.BLOCK) -> Scan:
        """The codec's scan of all blocks: keys uint32[blocks]."""
        keys = np.zeros(codec.block_count(self.size, block), np.uint32)
        for number in range(keys.size):
            start = number * block
            found = codec.scan(self.values(start, min(start + block, self.size)), block)
            if found.first_nonfinite >= 0:
                return Scan(keys, start + found.first_nonfinite)
            keys[number] = found.keys[0]
        return Scan(keys, -1)

    def scan_exact(self, world_size: int, block: int = codec.BLOCK) -> Scan:
        """The exact codec's: keys uint32[blocks * EXACT_KEYS], a block's together."""
        keys = np.zeros((codec.block_count(self.size, block), codec.EXACT_KEYS), np.uint32)
        for number in range(keys.shape[0]):
            start = number * block
            found = codec.scan_exact(self.raw(start, min(start + block, self.size)), world_size, block)
            if found.first_nonfinite >= 0:
                return Scan(keys.reshape(-1), start + found.first_nonfinite)
            keys[number] = found.keys[:, 0]
        return Scan(keys.reshape(-1), -1)

    def sample(self) -> np.ndarray:
        """Some of the coordinates, in long runs, that stand for all: the largest array."""
        largest = max(self._pieces, key=lambda piece: piece.size)
        return widen(largest[: 1 << 20]) if self.wide != self.dtype else largest

    def write_back(
        self, results: Iterable[Result], special: Iterable[Marks], arrays: Sequence[np.ndarray]
    ) -> None:
        """Write ``results``, and infinity and NaN over them where ``special`` says, into ``arrays``, of which
        the stream was made or is a copy."""
        for result in results:
            parts = list(self._parts(result.start, result.stop))
            if len(parts) == 1 and result.dtype == self.dtype:
                result.write(parts[0])
                continue
            whole = np.empty(result.stop - result.start, result.dtype)
            result.write(whole)
            offset = 0
            for part in parts:
                inside = whole[offset : offset + part.size]
                offset += part.size
                if result.dtype == self.dtype:
                    part[...] = inside
                else:
                    narrow(inside, part)
        for marks in special:
            self._put(marks.up, np.inf)
            self._put(marks.down, -np.inf)
            self._put(np.intersect1d(marks.up, marks.down), np.nan)
        for array, piece in zip(arrays, self._pieces, strict=True):
            if not np.may_share_memory(array, piece):
                array[...] = piece.reshape(array.shape)

    def _put(self, coordinates: np.ndarray, value: float) -> None:
        for end, piece in zip(self._ends, self._pieces, strict=True):
            start = end - piece.size
            piece[coordinates[(coordinates >= start) & (coordinates < end)] - start] = value


def set_aside_nonfinite(arrays: Sequence[np.ndarray]) -> tuple[list[np.ndarray], Marks]:
    """(copies of the arrays with 0 where they are not finite, where that was)."""
    finite, up, down = [], [], []
    offset = 0
    for array in arrays:
        nan = np.isnan(array)
        infinite = np.isinf(array)
        positive = infinite & (array > 0)
        up.append(np.flatnonzero(nan | positive) + offset)
        down.append(np.flatnonzero(nan | (infinite & ~positive)) + offset)
        finite.append(np.where(nan | infinite, array.dtype.type(0), array))
        offset += array.size
    return finite, Marks(np.concatenate(up), np.concatenate(down))


def wide_dtype(dtype: np.dtype) -> np.dtype:
    """The codec's dtype for arrays of one of DTYPES."""
    return np.dtype(np.float64) if dtype.name in _HALVES else dtype


def widen(half: np.ndarray) -> np.ndarray:
    """float16 or bfloat16 as float64, exactly."""
    if half.dtype.name == "bfloat16":
        return (half.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return half.astype(np.float64)


def narrow(wide: np.ndarray, half: np.ndarray) -> None:
    """Round float64 to float16 or bfloat16, to nearest, ties to even, once; beyond the dtype to infinity."""
    if half.dtype.name != "bfloat16":
        with np.errstate(over="ignore", under="ignore"):
            half[...] = wide
        return
    # By way of float32 rounded to odd, which keeps what the second rounding needs to know of the bits that
    # fell off (Boldo & Melquiond, "When double rounding is odd", 2005).
    with np.errstate(over="ignore", under="ignore"):
        nearest = wide.astype(np.float32)
    back = nearest.astype(np.float64)
    bits = nearest.view(np.uint32)
    bits -= np.abs(back) > np.abs(wide)
    bits |= back != wide
    bits += 0x7FFF + (bits >> 16 & 1)
    half.view(np.uint16)[...] = bits >> 16
