"""Which bits a block's coordinates have on any rank, and how they are cut into digits that sum in a lane.

A finite float is an integer multiple of its format's smallest subnormal. The exact codec writes that integer
in digits, one a "limb", of ``digit_bits`` = 31 - ceil(log2(world_size)) bits, each with the value's sign, so
that no sum of a digit over the ranks leaves int32. That is the superaccumulator of exact summation (Kulisch;
Neal, arXiv 1505.05571), cut to the window of bits that the block has, with the carries left to the receiver.

A rank describes a block by three uint32 keys, which the switch combines by MAX; all are 0 for a block of
zeros:

- EXPONENT_BIAS + E, where every |x| < 2**E: the window's end, the same key as ``scan``'s;
- LOWEST_BIAS - F, where every x is a multiple of 2**F: the window's start;
- a vote where digits should begin. Most gradients of a block differ in exponent by a few bits, so they fit in
  one digit if none begins among their bits, and take two if one does (on the recorded gradients of 4 ranks
  1.24 digits a coordinate, 1.83 if digits begin at the window's start, 1.47 if they end at its end). The vote
  of the rank with the most non-zeros wins: bits 13 to 31 are their number in units of 16, rounded up; bits 5
  to 12 how many digits a value takes then, in units of 1/32, rounded up; bits 0 to 4 the position modulo
  ``digit_bits`` that a digit begins at.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from switchreduce.errors import MismatchError, UsageError
from switchreduce.worker.codec.arrays import BLOCK, Lanes, block_count, read_only
from switchreduce.worker.codec.exact_format import bits_view, format_of
from switchreduce.worker.codec.exact_kernels import survey
from switchreduce.worker.codec.index import FLAT, Shape
from switchreduce.worker.codec.scale import EXPONENT_BIAS, MAX_WORLD_SIZE

LANE_BITS = 31  # of a lane, without the sign
LOWEST_BIAS = 1024  # a float64's lowest set bit is at 2**1023 at most, which gives key 1
EXACT_KEYS = 3  # a block

_COUNT_UNIT = 16  # so that a block of up to 2**22 non-zeros leaves 13 bits
_DIGIT_UNITS = 32  # a digit index costs one of these a limb and coordinate: a bit of a lane's 32
_RACED = 65  # `survey` finds the lowest bit of a value that another thread has just cleared at 64
_FLAT_LIMBS = 4  # up to here, another round trip costs more than the empty parts of a digit index


@dataclass(frozen=True)
class ExactScan:
    """What one pass over an array finds: ``keys`` uint32[EXACT_KEYS, blocks], and the flat index of the first
    NaN or infinity (-1: none). With a NaN or infinity the keys mean nothing."""

    keys: Lanes
    first_nonfinite: int


def scan_exact(x: NDArray[Any], world_size: int, block: int = BLOCK) -> ExactScan:
    """Keys of all blocks of ``x`` (of a format in exact_format, 1-D, contiguous) for ``world_size`` ranks.

    Raises UsageError for other arrays or world sizes.
    """
    bits = read_only(bits_view(x))
    form = format_of(x.dtype)
    digit_bits = digit_bits_for(world_size)
    keys = np.zeros((EXACT_KEYS, block_count(x.size, block)), np.uint32)
    mask = form.bits_type(np.iinfo(form.bits_type).max >> 1)
    room = max(form.positions + 2, _RACED)  # NaN and infinity reach one position further
    starts = np.empty(room, np.int64)
    ends = np.empty(room, np.int64)
    for number in range(keys.shape[1]):
        part = bits[number * block : (number + 1) * block]
        count = survey(part, mask, form.precision, form.exponent_bits, starts, ends)
        if count == 0:
            continue
        end = int(np.flatnonzero(ends)[-1])
        if end > form.positions:
            inside = int(np.argmax(part & mask >= form.bits_type(form.infinity)))
            return ExactScan(np.zeros_like(keys), number * block + inside)
        keys[0, number] = EXPONENT_BIAS + form.minimum + end
        keys[1, number] = LOWEST_BIAS - form.minimum - int(np.flatnonzero(starts)[0])
        keys[2, number] = _vote(count, starts, ends, digit_bits)
    return ExactScan(keys, -1)


def digit_bits_for(world_size: int) -> int:
    """Bits of a digit, at least 16. Raises UsageError for a world size outside 1..MAX_WORLD_SIZE."""
    if not 1 <= world_size <= MAX_WORLD_SIZE:
        raise UsageError(f"world size {world_size} is not in 1..{MAX_WORLD_SIZE}")
    return LANE_BITS - (world_size - 1).bit_length()


def _vote(count: int, starts: NDArray[np.int64], ends: NDArray[np.int64], digit_bits: int) -> int:
    # values with bits on both sides of position p: they start before it and end after it
    ended = np.cumsum(ends)  # at p or before
    split = np.concatenate([[0], np.cumsum(starts)[:-1]]) - ended
    padded = np.zeros(-(-split.size // digit_bits) * digit_bits, np.int64)
    padded[: split.size] = split
    splits = padded.reshape(-1, digit_bits).sum(axis=0)
    phase = int(np.argmin(splits))
    digits = -(-_DIGIT_UNITS * (count + int(splits[phase])) // count)
    return -(-count // _COUNT_UNIT) << 13 | digits << 5 | phase


@dataclass(frozen=True)
class ExactScale:
    """How a block's coordinates are cut into digits, equal on all ranks.

    Limb l holds the bits from 2**(exponent + l * digit_bits) on. ``expected``: digits that a coordinate
    takes, in units of 1/32, as one rank saw it.
    """

    dtype: np.dtype[Any]
    world_size: int
    is_empty: bool  # every coordinate of every rank is zero: nothing else needs to be sent
    exponent: int
    digit_bits: int
    limbs: int
    expected: int

    @classmethod
    def from_keys(cls, dtype: Any, keys: Any, world_size: int) -> "ExactScale":
        """The scale for a block's EXACT_KEYS keys, each the largest over the ranks.

        Raises UsageError for a dtype or world size that the codec does not take, MismatchError for keys that
        no arrays of ``dtype`` have.
        """
        dtype = np.dtype(dtype)
        form = format_of(dtype)
        digit_bits = digit_bits_for(world_size)
        top, bottom, vote = (int(key) for key in keys)
        if top == bottom == vote == 0:
            return cls(dtype, world_size, True, 0, digit_bits, 0, 0)
        end = top - EXPONENT_BIAS - form.minimum
        start = LOWEST_BIAS - bottom - form.minimum
        phase, expected = vote & 31, vote >> 5 & 255
        if not (0 <= start < end <= form.positions and phase < digit_bits and expected >= _DIGIT_UNITS):
            raise MismatchError(
                f"keys {top}, {bottom}, {vote} are impossible for {dtype}; do all ranks use {dtype}?"
            )
        if end - start > digit_bits:
            start -= (start - phase) % digit_bits
        limbs = -(-(end - start) // digit_bits)
        return cls(dtype, world_size, False, form.minimum + start, digit_bits, limbs, expected)

    @property
    def has_digit_index(self) -> bool:
        """Whether the ranks say which digits of the union's coordinates are not 0 before they send them.

        By the bits: an index of one bit a digit, and those expected to be set, against every digit. Equal on
        all ranks, as it depends on the keys alone.
        """
        return self.limbs + min(self.expected, 32 * self.limbs) < _DIGIT_UNITS * self.limbs

    @property
    def digit_shape(self) -> Shape:
        """The shape that suits the digit index: flat, or in two levels for many limbs, most of them empty."""
        return FLAT if self.limbs <= _FLAT_LIMBS else (64, 1)
