"""The scale of a block: from the ranks' largest magnitudes to one power of two that all ranks share.

A rank describes a block's magnitude by one uint32 *key*, and the switch takes the MAX over ranks. A key
is 0 when the block is all zeros. For floats it is the exponent E of ``frexp`` (every |x| < 2**E) plus
EXPONENT_BIAS; for int32 it is the largest |x|, at most 2**31.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from switchreduce.errors import MismatchError, UsageError
from switchreduce.worker.codec.arrays import BLOCK, Lanes, Values, block_count, check_values, read_only
from switchreduce.worker.codec.kernels import block_maxima, block_maxima_signed

EXPONENT_BIAS = 1074  # float64's smallest subnormal, 2**-1074, has E = -1073 and so key 1
SUM_BITS = 30  # |sum over ranks| <= 2**30 for floats: inside int32 however the ranks round
MAX_WORLD_SIZE = 1 << 15  # two 16-bit limbs, summed over this many ranks, still fit 32 bits

_BITS: dict[Any, tuple[Any, int]] = {
    np.dtype(np.float32): (np.uint32, 0x7FFF_FFFF),
    np.dtype(np.float64): (np.uint64, 0x7FFF_FFFF_FFFF_FFFF),
    np.dtype(np.int32): (np.uint32, 0xFFFF_FFFF),
}


@dataclass(frozen=True)
class Scan:
    """What one pass over an array finds: ``keys`` uint32[blocks], and the flat index of the first NaN
    or infinity (-1: none). With a NaN or infinity the keys mean nothing."""

    keys: Lanes
    first_nonfinite: int


def scan(x: Values, block: int = BLOCK) -> Scan:
    """Keys of all blocks of ``x`` (float32, float64 or int32, 1-D, contiguous), and where it is not finite.

    Raises UsageError for other arrays.
    """
    check_values(x)
    blocks = block_count(x.size, block)
    bits_type, mask = bits_of(x.dtype)
    maxima = np.zeros(blocks, bits_type)
    if x.dtype.kind == "i":
        block_maxima_signed(read_only(x), block, maxima)
        return Scan(maxima, -1)
    block_maxima(read_only(x.view(bits_type)), mask, block, maxima)
    largest = maxima.view(x.dtype)
    finite = np.isfinite(largest)
    if not finite.all():
        start = int(np.argmin(finite)) * block
        inside = int(np.argmin(np.isfinite(x[start : start + block])))
        return Scan(np.zeros(blocks, np.uint32), start + inside)
    exponents = np.frexp(largest)[1] + EXPONENT_BIAS
    return Scan(np.where(largest == 0, 0, exponents).astype(np.uint32), -1)


def bits_of(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """(dtype, mask): view an array as the dtype and apply the mask, and larger bits are larger |x|
    for floats; for int32 only zero and non-zero can be told apart."""
    bits_type, mask = _BITS[dtype]
    return bits_type, bits_type(mask)


@dataclass(frozen=True)
class BlockScale:
    """How a block's coordinates become integers, equal on all ranks.

    Floats: ``q = rint(x * 2**shift)``, round half to even, with ``shift = 30 - ceil(log2(world_size)) - E``
    so that no sum over ranks leaves [-2**30, 2**30]. One lane per coordinate (``limbs`` is 1).

    int32: ``q = x`` and ``shift`` is 0. When ``world_size * key`` could leave int32 a coordinate takes two
    lanes, ``q & 0xffff`` and ``q >> 16``, whose sums give the exact 64-bit sum.

    Error of a float result: each rank rounds by at most half a quantum (2**-shift), so the integer sum is
    within world_size / 2 quanta of the exact sum; turning it into the result adds half an ulp of the dtype
    (for a mean also half an ulp of float64, from the division). A sum beyond the dtype becomes infinity,
    as in NumPy.
    """

    dtype: np.dtype[Any]
    world_size: int
    is_empty: bool  # every coordinate of every rank is zero: no index and no sums are needed
    shift: int
    limbs: int

    @classmethod
    def from_key(cls, dtype: Any, key: int, world_size: int) -> "BlockScale":
        """The scale for the ranks' largest key.

        Raises UsageError for a world size outside 1..MAX_WORLD_SIZE, MismatchError for a key that no array
        of ``dtype`` has (a rank with another dtype took part).
        """
        dtype, key = np.dtype(dtype), int(key)
        if not 1 <= world_size <= MAX_WORLD_SIZE:
            raise UsageError(f"world size {world_size} is not in 1..{MAX_WORLD_SIZE}")
        if dtype.kind == "i":
            largest = 1 << 31
            limbs = 1 if world_size * key < 1 << 31 else 2
            shift = 0
        else:
            largest = np.finfo(dtype).maxexp + EXPONENT_BIAS
            limbs = 1
            shift = SUM_BITS - (world_size - 1).bit_length() - (key - EXPONENT_BIAS)
        if not 0 <= key <= largest:
            raise MismatchError(f"magnitude key {key} is impossible for {dtype}; do all ranks use {dtype}?")
        return cls(dtype, world_size, key == 0, 0 if key == 0 else shift, limbs)

    @property
    def quantum(self) -> float:
        """The value of one integer step; 0.0 where it is below float64's smallest subnormal."""
        return math.ldexp(1.0, -self.shift)

    @property
    def threshold(self) -> Any:
        """Largest bits (see ``bits_of``) of an |x| that quantises to zero."""
        bits_type, _ = bits_of(self.dtype)
        if self.dtype.kind == "i":
            return bits_type(0)
        # rint(|x| * 2**shift) is 0 up to and including |x| = 2**(-shift - 1), half a quantum: ties go to even
        with np.errstate(under="ignore"):  # whatever the caller has set
            half = np.ldexp(self.dtype.type(1), -self.shift - 1)
        return np.asarray(half, self.dtype).view(bits_type)[()]

    @property
    def factors(self) -> tuple[float, float]:
        """Two powers of two whose product is 2**shift, which alone may be out of float64's range."""
        return power_of_two_factors(self.shift)


def power_of_two_factors(exponent: int) -> tuple[float, float]:
    """(a, b), powers of two with a * b == 2**exponent, each a normal float64 for |exponent| < 2044.

    ``x * a * b`` rounds at most once: every product between x and the result is exact unless the result
    itself is subnormal or overflows.
    """
    half = exponent // 2
    return math.ldexp(1.0, half), math.ldexp(1.0, exponent - half)
