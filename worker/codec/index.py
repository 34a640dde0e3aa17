"""The index: how all ranks learn the union of their supports, bit by OR-ed bit.

Flat, it is one bit a coordinate. Where few coordinates are set that is mostly zeros, so it may travel in
levels instead: a bit for each group of coordinates, then, once the ranks know which groups anybody occupies,
bits for the smaller groups inside those only, down to single coordinates. (Adaptive group testing, Dorfman
1943: OR is the test.) Each level is one more round trip, and its size follows from the level above, so all
ranks know it without a message.
"""

import itertools
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from switchreduce.errors import SwitchError
from switchreduce.worker.codec.arrays import (
    Lanes,
    Values,
    check_lanes,
    check_values,
    index_lanes,
    read_only,
)
from switchreduce.worker.codec.index_kernels import read_level, write_level, write_top
from switchreduce.worker.codec.kernels import BATCH, WORD, count_bits, list_bits
from switchreduce.worker.codec.scale import bits_of

Shape: TypeAlias = tuple[int, ...]  # group sizes, each a multiple of the next, down to 1

FLAT: Shape = (1,)

# Which shapes a call may choose from, for ever sparser unions; ranks name one by its place here. Of all
# divisor chains of up to five sizes, those that cost least bits when coordinates are set independently with
# probability 0.00001, 0.0001, 0.001, 0.01, 0.02, 0.05 and 0.15 (within 3 %), and, with one or two sizes, for
# rows of 32 to 256 coordinates that are set together.
SHAPES: tuple[Shape, ...] = (
    (4096, 512, 64, 8, 1),
    (4096, 256, 1),
    (4096, 64, 1),
    (1024, 64, 8, 1),
    (1024, 32, 1),
    (192, 24, 4, 1),
    (64, 16, 4, 1),
    (256, 1),
    (64, 1),
    (16, 4, 1),
    (32, 1),
    (12, 3, 1),
    (4, 1),
    FLAT,
)


class UnionSearch:
    """One block's way from a rank's index to the union of all ranks'.

    Until ``done``: ``write`` this level's bits to ``lanes`` lanes, combine them by OR, ``read`` the outcome.
    Then ``coordinates`` (uint32, ascending) is the union.
    """

    def __init__(self, index: Lanes, size: int, shape: Shape) -> None:
        check_lanes("index", index, np.uint32, index_lanes(size))
        self.coordinates: NDArray[np.uint32] = np.empty(0, np.uint32)
        self.done = size == 0
        self._index = read_only(index)
        self._size = size
        self._shape = shape
        self._level = 0
        self._groups = np.empty(0, np.uint32)  # occupied ones of the level above

    @property
    def lanes(self) -> int:
        """Lanes of the level under way."""
        return index_lanes(self._bits)

    @property
    def _bits(self) -> int:
        if self._level == 0:
            return -(-self._size // self._shape[0])
        return self._groups.size * self._ratio

    @property
    def _ratio(self) -> int:
        return self._shape[self._level - 1] // self._shape[self._level]

    def write(self, lanes: Lanes) -> None:
        """Write this rank's bits of the level under way to ``lanes`` (uint32[self.lanes], overwritten)."""
        check_lanes("lanes", lanes, np.uint32, self.lanes)
        size = self._shape[self._level]
        if self._level > 0:
            write_level(self._index, read_only(self._groups), self._ratio, size, lanes)
        elif size == 1:
            lanes[:] = self._index
        else:
            write_top(self._index, size, self._bits, lanes)

    def read(self, lanes: Lanes) -> None:
        """Take the OR over ranks of a level's ``lanes`` and go on to the next level, or be done.

        Raises SwitchError if it has bits beyond the block's end.
        """
        check_lanes("lanes", lanes, np.uint32, self.lanes)
        lanes = read_only(lanes)
        if self._bits % WORD and lanes[-1] >> np.uint32(self._bits % WORD):
            raise self._altered()
        count = count_bits(lanes)
        groups = np.empty(count + BATCH, np.uint32)
        if self._level == 0:
            list_bits(lanes, groups)
        else:
            read_level(lanes, read_only(self._groups), self._ratio, groups)
        self._groups = groups[:count]
        size = self._shape[self._level]
        if count and int(self._groups[-1]) * size >= self._size:
            raise self._altered()
        self._level += 1
        if count == 0 or size == 1:
            self.done = True
            self.coordinates = read_only(self._groups)

    def _altered(self) -> SwitchError:
        return SwitchError(
            f"the index of a block of {self._size} coordinates has bits beyond its end: packets were altered"
        )


@dataclass(frozen=True)
class Occupancy:
    """How a rank's non-zeros lie in an array: the share of groups of each size that have any."""

    shares: dict[int, float]

    @property
    def density(self) -> float:
        return self.shares[1]

    def index_bits(self, shape: Shape, copies: float) -> float:
        """Bits a coordinate that an index of ``shape`` takes for the union of ``copies`` such supports that
        are independent of each other (1: all ranks have the same)."""
        bits = 1 / shape[0]
        for parent, child in itertools.pairwise(shape):
            bits += (1 - (1 - self.shares[parent]) ** copies) / child
        return bits


_SIZES = tuple(sorted({size for shape in SHAPES for size in shape}))
_RUN = 12_288  # coordinates looked at in one piece: a multiple of all sizes
_PIECES = 16  # at most, over the array


def look(x: Values) -> Occupancy:
    """The occupancy of ``x`` (1-D, contiguous, of a codec dtype), estimated from at most _PIECES pieces."""
    check_values(x)
    bits_type, mask = bits_of(x.dtype)
    bits = x.view(bits_type)
    stride = max(_RUN, -(-bits.size // _PIECES))
    whole = [bits[start : start + _RUN] for start in range(0, bits.size - _RUN + 1, stride)]
    padding = np.zeros(0 if whole else -bits.size % WORD, bits_type)
    sample = np.concatenate([*(whole or [bits]), padding])
    seen = sample.size if whole else bits.size
    words = read_only(np.packbits(sample & mask != 0, bitorder="little").view("<u4").astype(np.uint32))
    shares = {}
    for size in _SIZES:
        groups = -(-seen // size)
        occupied = np.empty(index_lanes(groups), np.uint32)
        write_top(words, size, groups, occupied)
        shares[size] = count_bits(read_only(occupied)) / max(groups, 1)
    return Occupancy(shares)


def best_shape(
    occupancy: Occupancy,
    copies: float,
    bits_a_level: float = 0.0,
    bits_a_bit: float = 0.0,
    bits_if_flat: float = 0.0,
) -> tuple[int, float]:
    """(place in SHAPES, bits a coordinate) of the index that costs least.

    What an index costs besides its bits, in bits a coordinate: ``bits_a_level`` for a level beyond the first,
    as a round trip is worth so many; for the time to make and read it, ``bits_a_bit`` for each bit if it has
    levels, and ``bits_if_flat`` if it has none.
    """

    def cost(place: int) -> float:
        shape = SHAPES[place]
        if shape == FLAT:
            return 1 + bits_if_flat
        return occupancy.index_bits(shape, copies) * (1 + bits_a_bit) + bits_a_level * (len(shape) - 1)

    place = min(range(len(SHAPES)), key=cost)
    return place, occupancy.index_bits(SHAPES[place], copies)
