"""Arrays of which only some rows are there, on their way through a call without a dense copy.

A sparse call is the dense call of the same shape, block by block, on the wire as well: ranks may mix both.
Blocks in which no rank has a row cost one key; of the others one at a time is unfolded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from switchreduce.errors import SwitchReduceError, UsageError
from switchreduce.worker import codec
from switchreduce.worker.codec import Scan
from switchreduce.worker.stream import Marks, Result, narrow, set_aside_nonfinite, wide_dtype, widen

SAMPLED_BLOCKS = 4


@dataclass
class SparseArray:
    """An array of ``height`` rows; those that are not in ``rows`` are zero.

    ``rows``: int64[n], ascending, each once. ``values``: [n, width], of a dtype that `allreduce` takes. For
    single elements, ``width`` is 1.
    """

    rows: np.ndarray
    values: np.ndarray
    height: int

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, int]:
        return self.height, self.values.shape[1] if self.values.ndim == 2 else 0

    @property
    def nbytes(self) -> int:
        """Of the array that this stands for."""
        return self.shape[0] * self.shape[1] * self.values.itemsize

    def problem(self) -> SwitchReduceError | None:
        """What is wrong with it, or None."""
        if self.values.ndim != 2 or self.rows.shape != self.values.shape[:1] or self.rows.dtype != np.int64:
            return UsageError("a sparse array takes rows as int64[n] and values as [n, width]")
        rows = self.rows
        if rows.size and not (rows[0] >= 0 and rows[-1] < self.height and (rows[1:] > rows[:-1]).all()):
            return UsageError(f"a sparse array's rows must be ascending, each once, in 0..{self.height - 1}")
        return None

    def set_aside_nonfinite(self) -> tuple[SparseArray, Marks]:
        """(a copy with 0 where it is not finite, where that was)."""
        (values,), marks = set_aside_nonfinite([self.values])
        finite = SparseArray(self.rows, values, self.height)
        up, down = (coordinates_of(self, positions) for positions in (marks.up, marks.down))
        return finite, Marks(up, down)


def coordinates_of(x: SparseArray, positions: np.ndarray) -> np.ndarray:
    """int64: where in the array the elements at ``positions`` of its flattened values are."""
    width = x.shape[1]
    return x.rows[positions // width] * width + positions % width


class SparseStream:
    """A sparse array as one run of coordinates: a `Stream` for callers."""

    def __init__(self, x: SparseArray) -> None:
        self._x = x
        self.dtype = x.dtype
        self.wide = wide_dtype(x.dtype)
        self._values = np.require(x.values, requirements=["C", "A"]).reshape(-1)

    @property
    def size(self) -> int:
        height, width = self._x.shape
        return height * width

    def _positions(self, coordinates: np.ndarray) -> np.ndarray:
        """How many of the values come before each coordinate."""
        rows, width = self._x.rows, max(self._x.shape[1], 1)
        if not rows.size:
            return np.zeros_like(coordinates)
        row, inside = np.divmod(coordinates, width)
        place = np.searchsorted(rows, row)
        is_there = rows[np.minimum(place, rows.size - 1)] == row
        return place * width + np.where(is_there, inside, 0)

    def values(self, start: int, stop: int) -> np.ndarray:
        """Coordinates [start, stop) as a contiguous array of dtype ``wide``, zeros included."""
        raw = self.raw(start, stop)
        return raw if self.wide == self.dtype else widen(raw)

    def raw(self, start: int, stop: int) -> np.ndarray:
        """Coordinates [start, stop) as a contiguous array of the array's own dtype, zeros included."""
        first, last = self._positions(np.array([start, stop], np.int64))
        block = np.zeros(stop - start, self.dtype)
        block[coordinates_of(self._x, np.arange(first, last)) - start] = self._values[first:last]
        return block

    def locate(self, coordinate: int) -> tuple[int, tuple[int, ...]]:
        """(0, index) of a coordinate."""
        return 0, divmod(coordinate, self._x.shape[1])

    def _occupied(self, block: int) -> Iterator[tuple[int, np.ndarray, int]]:
        """(number, values, position of the first) of blocks that are not empty."""
        blocks = codec.block_count(self.size, block)
        ends = self._positions(np.minimum(np.arange(blocks + 1, dtype=np.int64) * block, self.size))
        for number in np.flatnonzero(ends[1:] > ends[:-1]):
            yield int(number), self._values[ends[number] : ends[number + 1]], int(ends[number])

    def scan(self, block: int = codec.BLOCK) -> Scan:
        """The codec's scan of all blocks: keys uint32[blocks]."""
        keys = np.zeros(codec.block_count(self.size, block), np.uint32)
        for number, values, position in self._occupied(block):
            found = codec.scan(values if self.wide == self.dtype else widen(values), block)
            if found.first_nonfinite >= 0:
                return Scan(keys, self._coordinate(position + found.first_nonfinite))
            keys[number] = found.keys[0]
        return Scan(keys, -1)

    def scan_exact(self, world_size: int, block: int = codec.BLOCK) -> Scan:
        """The exact codec's: keys uint32[blocks * EXACT_KEYS], a block's together."""
        keys = np.zeros((codec.block_count(self.size, block), codec.EXACT_KEYS), np.uint32)
        for number, values, position in self._occupied(block):
            found = codec.scan_exact(values, world_size, block)
            if found.first_nonfinite >= 0:
                return Scan(keys.reshape(-1), self._coordinate(position + found.first_nonfinite))
            keys[number] = found.keys[:, 0]
        return Scan(keys.reshape(-1), -1)

    def _coordinate(self, position: int) -> int:
        return int(coordinates_of(self._x, np.array([position]))[0])

    def sample(self) -> np.ndarray:
        """Some blocks of those that are not empty, which stand for them all."""
        numbers = [number for number, _, _ in self._occupied(codec.BLOCK)]
        chosen = numbers[:: -(-len(numbers) // SAMPLED_BLOCKS) or 1]
        starts = [number * codec.BLOCK for number in chosen]
        parts = [self.values(start, min(start + codec.BLOCK, self.size)) for start in starts]
        return np.concatenate(parts) if parts else np.zeros(codec.BLOCK, self.wide)

    def write_back(
        self, results: Iterable[Result], special: Iterable[Marks], arrays: Sequence[SparseArray]
    ) -> None:
        """Make the rows in which the result is not zero those of the array in ``arrays``."""
        parts = [self._nonzeros(result) for result in results if not result.is_empty]
        for marks in special:
            both = np.intersect1d(marks.up, marks.down)
            for coordinates, value in ((marks.up, np.inf), (marks.down, -np.inf), (both, np.nan)):
                parts.append((coordinates, np.full(coordinates.size, value, self.dtype)))
        width = self._x.shape[1]
        coordinates = np.concatenate([part[0] for part in parts] or [np.empty(0, np.int64)])
        row, inside = np.divmod(coordinates, max(width, 1))
        rows, place = np.unique(row, return_inverse=True)
        values = np.zeros((rows.size, width), self.dtype)
        start = 0
        for _, of_part in parts:  # in turn, for what is not finite comes last and stays
            stop = start + of_part.size
            values[place[start:stop], inside[start:stop]] = of_part
            start = stop
        arrays[0].rows, arrays[0].values = rows, values

    def _nonzeros(self, result: Result) -> tuple[np.ndarray, np.ndarray]:
        """(coordinates, values) of one block, unfolded meanwhile."""
        block = np.empty(result.stop - result.start, result.dtype)
        result.write(block)
        inside = np.flatnonzero(block)
        values = block[inside]
        if result.dtype != self.dtype:
            wide, values = values, np.empty(values.size, self.dtype)
            narrow(wide, values)
        return inside + result.start, values
