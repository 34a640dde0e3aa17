"""The exact codec's loops, compiled by numba without the GIL and cached on disk.

``bits`` are coordinates viewed as unsigned integers of their width; ``precision`` and ``exponent_bits``
describe their format (see exact_format.py). A magnitude is ``significand * 2**position``, counted in units of
the format's smallest subnormal. The loops check nothing; the functions that call them do.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from switchreduce.worker.codec.kernels import BATCH, WORD, above, popcount, trailing_zeros

EMPTY = 255  # limb of a coordinate that no digit has been added to; a block has at most 133
FRACTION = 4  # digits of at least 16 bits below the window, so that a quotient has 64 bits

# A position divided by the digits' width: multiply and shift, which is exact for dividends below 4096 and
# divisors of 16 to 31, as the quotient is too large by less than 4096 / 2**20 < 1 / 31.
_RECIPROCAL_SHIFT = 20


def reciprocal(digit_bits: int) -> int:
    """What ``_quotient`` multiplies by to divide by ``digit_bits``."""
    return (1 << _RECIPROCAL_SHIFT) // digit_bits + 1


@intrinsic
def leading_zeros(typingctx: Any, word: Any) -> tuple[Any, Any]:
    """Number of zero bits above the highest set bit of a uint64, as intp; 64 if there is none."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.intp(types.uint64), codegen


@intrinsic
def lowest_bit(typingctx: Any, word: Any) -> tuple[Any, Any]:
    """Position of the lowest set bit of a uint64, as intp; 64 if there is none."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.intp(types.uint64), codegen


@njit(inline="always")
def _take_apart(bits: Any, precision: Any, exponent_bits: Any) -> Any:
    """(significand as uint64, position) of a coordinate; infinity and NaN as if the format went on."""
    word = np.uint64(bits)
    field = np.int64(
        (word >> np.uint64(precision - 1)) & ((np.uint64(1) << np.uint64(exponent_bits)) - np.uint64(1))
    )
    normal = np.int64(field > 0)
    significand = word & ((np.uint64(1) << np.uint64(precision - 1)) - np.uint64(1))
    significand |= np.uint64(normal) << np.uint64(precision - 1)
    return significand, field - normal


@njit(inline="always")
def _quotient(dividend: Any, inverse: Any) -> Any:
    return (dividend * inverse) >> np.int64(_RECIPROCAL_SHIFT)


@njit(cache=True, nogil=True)
def survey(bits: Any, mask: Any, precision: int, exponent_bits: int, starts: Any, ends: Any) -> int:
    """Count the coordinates that are not zero, and where their bits lie; returns how many there are.

    starts[p] counts those whose lowest set bit is at position p, ends[p] those whose highest is at p - 1.
    """
    starts[:] = 0
    ends[:] = 0
    count = 0
    whole = bits.size // WORD
    for lane in range(-(-bits.size // WORD)):
        start = lane * WORD
        if lane < whole:
            word = above(bits, start, mask, bits.dtype.type(0))
        else:
            word = np.uint32(0)
            for i in range(bits.size - start):
                word |= np.uint32(bits[start + i] & mask != 0) << np.uint32(i)
        count += popcount(word)
        while word:
            significand, position = _take_apart(bits[start + trailing_zeros(word)], precision, exponent_bits)
            starts[position + lowest_bit(significand)] += 1
            ends[position + 64 - leading_zeros(significand)] += 1
            word = np.uint32(word & np.uint32(word - np.uint32(1)))
    return count


@njit(cache=True, nogil=True)
def list_nonzeros(bits: Any, mask: Any, index: Any, coordinates: Any, values: Any) -> int:
    """Index and list the coordinates that are not zero, with their bits; returns how many.

    The lists need room for bits.size + BATCH (see quantise_block).
    """
    count = 0
    whole = bits.size // WORD
    for lane in range(index.size):
        start = lane * WORD
        if lane < whole:
            word = above(bits, start, mask, bits.dtype.type(0))
        else:
            word = np.uint32(0)
            for i in range(bits.size - start):
                word |= np.uint32(bits[start + i] & mask != 0) << np.uint32(i)
        index[lane] = word
        end = count + popcount(word)
        while word:
            for j in range(BATCH):
                coordinate = start + trailing_zeros(word)
                coordinates[count + j] = np.uint32(coordinate)
                values[count + j] = bits[coordinate]
                word = np.uint32(word & np.uint32(word - np.uint32(1)))
            count += BATCH
        count = end
    return count


@njit(cache=True, nogil=True)
def find(index: Any, union: Any, positions: Any) -> Any:
    """List the k for which coordinate union[k] is in the index; returns how many. The list needs room for one
    more. Without a branch, which independent supports would make unpredictable."""
    found = np.int64(0)
    for k in range(union.size):
        coordinate = np.int64(union[k])
        positions[found] = np.uint32(k)
        found += np.int64(index[coordinate >> 5] >> np.uint32(coordinate & 31) & np.uint32(1))
    return found


@njit(inline="always")
def _first_digit(
    bits: Any, precision: Any, exponent_bits: Any, base: Any, digit_bits: Any, inverse: Any, mask: Any
) -> Any:
    """A coordinate's lowest limb, its digit there, what is left for the limbs above, and whatever lies below
    position ``base``."""
    significand, position = _take_apart(bits, precision, exponent_bits)
    offset = position - base
    below = np.uint64(min(max(-offset, np.int64(0)), np.int64(63)))
    above = significand >> below
    offset = max(offset, np.int64(0))
    limb = _quotient(offset, inverse)
    into = offset - limb * digit_bits  # the digit's bit that the significand starts at
    digit = (above << np.uint64(into)) & mask
    return limb, digit, above >> np.uint64(digit_bits - into), significand ^ (above << below)


@njit(cache=True, nogil=True)
def count_digits(
    values: Any,
    precision: int,
    exponent_bits: int,
    base: int,
    digit_bits: int,
    inverse: int,
    steps: int,
    counts: Any,
) -> bool:
    """counts[l] = number of coordinates whose digit of limb l is not 0; returns whether limbs hold all bits.

    ``steps`` is the most digits that a coordinate has. All are looked at, also those that are 0: how many
    there are is different from value to value, and a branch on it would be mispredicted.
    """
    mask = (np.uint64(1) << np.uint64(digit_bits)) - np.uint64(1)
    counts[:] = 0
    last = np.int64(counts.size - 1)
    outside = np.uint64(0)
    for i in range(values.size):
        limb, digit, rest, below = _first_digit(
            values[i], precision, exponent_bits, base, digit_bits, inverse, mask
        )
        outside |= below
        for _ in range(steps):
            counts[min(limb, last)] += digit != np.uint64(0)
            outside |= np.uint64(limb > last) * digit
            digit = rest & mask
            rest >>= np.uint64(digit_bits)
            limb += 1
    return outside == np.uint64(0)


@njit(cache=True, nogil=True)
def list_digits(
    values: Any,
    positions: Any,
    width: int,
    precision: int,
    exponent_bits: int,
    base: int,
    digit_bits: int,
    inverse: int,
    steps: int,
    cursors: Any,
    index: Any,
    numbers: Any,
    digits: Any,
) -> None:
    """List the digits that are not 0 by their numbers, ``limb * width + position``, in order, and index them.

    cursors[l] is where limb l's part of the lists begins, by count_digits. The lists need room for one more:
    digits that are 0 go there. A digit has its value's sign.
    """
    mask = (np.uint64(1) << np.uint64(digit_bits)) - np.uint64(1)
    index[:] = np.uint32(0)
    last = np.int64(cursors.size - 1)
    spare = np.int64(numbers.size - 1)
    sign_bit = np.uint64(precision - 1 + exponent_bits)
    for i in range(values.size):
        limb, digit, rest, _ = _first_digit(
            values[i], precision, exponent_bits, base, digit_bits, inverse, mask
        )
        negative = -np.int64(np.uint64(values[i]) >> sign_bit)  # all ones, or 0
        for _ in range(steps):
            here = min(limb, last)
            some = np.int64(digit != np.uint64(0))
            number = here * width + np.int64(positions[i])
            at = cursors[here] if some else spare
            cursors[here] += some
            numbers[at] = np.uint32(number)
            digits[at] = np.int32((np.int64(digit) ^ negative) - negative)
            index[number >> 5] |= np.uint32(some) << np.uint32(number & 31)
            digit = rest & mask
            rest >>= np.uint64(digit_bits)
            limb += 1


@njit(cache=True, nogil=True)
def add_digits(
    lanes: Any, numbers: Any, ends: Any, digit_bits: int, sums: Any, firsts: Any, lasts: Any
) -> None:
    """Add up each coordinate's digits, as far as one word holds them.

    Lane i belongs to the digit ``numbers[i]`` (ascending), or to digit i where ``numbers`` is empty; limb l's
    end at lane ends[l]. firsts[k] and lasts[k] become the lowest and the highest limb of coordinate k that
    are not 0, or firsts[k] EMPTY; sums[k] the sum of the lowest and the next, in units of the lowest's lowest
    bit.
    """
    width = np.int64(sums.size)
    firsts[:] = np.uint8(EMPTY)
    listed = numbers.size > 0
    begin = 0
    for limb in range(ends.size):
        start = np.int64(limb) * width
        for i in range(begin, ends[limb]):
            digit = np.int64(np.int32(lanes[i]))
            if digit == 0:
                continue
            k = (np.int64(numbers[i]) if listed else np.int64(i)) - start
            first = np.int64(firsts[k])
            lasts[k] = np.uint8(limb)
            if first == EMPTY:
                firsts[k] = np.uint8(limb)
                sums[k] = digit
            elif limb == first + 1:
                sums[k] += digit << np.int64(digit_bits)  # at most 2**62 + 2**31 in magnitude
        begin = ends[limb]


@njit(cache=True, nogil=True)
def _divide(magnitude: Any, exponent: Any, divisor: Any) -> Any:
    """(quotient, whether something is left, exponent) of magnitude * 2**exponent by a divisor of up to 2**15.

    ``magnitude`` is not 0. The quotient has 64 bits.
    """
    zeros = leading_zeros(magnitude)
    magnitude <<= np.uint64(zeros)
    quotient = magnitude // divisor
    rest = magnitude - quotient * divisor
    more = leading_zeros(quotient)
    rest <<= np.uint64(more)
    last = rest // divisor
    return quotient << np.uint64(more) | last, rest != last * divisor, exponent - zeros - more


@njit(cache=True, nogil=True)
def _round(magnitude: Any, more: Any, exponent: Any, precision: Any, minimum: Any, infinity: Any) -> Any:
    """Bits (uint64) of ``(magnitude + f) * 2**exponent``, rounded once, half to even.

    ``magnitude`` is not 0; 0 < f < 1 if ``more``, which needs a magnitude of more than ``precision`` bits,
    else f is 0. The bits of floats ascend with their values, so a significand that rounds up to the next
    power of two, or out of the subnormals, carries into the exponent by itself.

    In integers: a float32 that is rounded to float64 first would be rounded twice, and whether the processor
    keeps subnormals can differ from process to process.
    """
    zeros = leading_zeros(magnitude)
    magnitude <<= np.uint64(zeros)
    exponent -= zeros
    ulp = max(exponent + np.int64(64) - precision, minimum)
    field = np.uint64(ulp - minimum)
    if field >= infinity >> np.uint64(precision - 1):
        return infinity
    shift = ulp - exponent
    if shift > 64:
        return np.uint64(0)
    half = np.uint64(1) << np.uint64(shift - 1)
    rest = magnitude & (half | (half - np.uint64(1)))
    significand = magnitude >> np.uint64(shift - 1) >> np.uint64(1)
    odd = more | ((significand & np.uint64(1)) != np.uint64(0))
    significand += np.uint64((rest > half) | ((rest == half) & odd))
    return min((field << np.uint64(precision - 1)) + significand, infinity)


@njit(cache=True, nogil=True)
def _write_wide(
    digits: Any,
    count: int,
    digit_bits: int,
    exponent: int,
    divisor: Any,
    precision: int,
    minimum: int,
    infinity: Any,
) -> Any:
    """(bits as uint64, whether negative) of the sum of digits[i] * 2**(exponent + i * digit_bits), i < count.

    ``digits`` (int64, used up) ends with a zero, and if ``divisor`` is not 1 begins with FRACTION of them.
    """
    width = np.int64(digit_bits)
    mask = (np.int64(1) << width) - np.int64(1)
    carry = np.int64(0)
    for i in range(count):
        carry = (digits[i] + carry) >> width
    negative = carry < 0
    carry = np.int64(0)
    for i in range(count):
        total = (-digits[i] if negative else digits[i]) + carry
        digits[i] = total & mask
        carry = total >> width
    rest = np.int64(0)
    top = -1
    for i in range(count - 1, -1, -1):
        if divisor > 1:
            value = rest << width | digits[i]
            digits[i] = value // divisor
            rest = value - digits[i] * divisor
        if top < 0 and digits[i]:
            top = i
    if top < 0:
        return np.uint64(0), False
    # the highest 64 bits; whatever is below only says whether there is more
    magnitude = np.uint64(digits[top])
    exponent_of_lowest = exponent + top * width
    i = top - 1
    more = rest != 0
    while i >= 0:
        room = np.int64(leading_zeros(magnitude))
        digit = np.uint64(digits[i])
        taken = min(room, width)
        magnitude = (magnitude << np.uint64(taken)) | (digit >> np.uint64(width - taken))
        exponent_of_lowest = exponent + i * width + (width - taken)
        if taken < width:
            more |= (digit & ((np.uint64(1) << np.uint64(width - taken)) - np.uint64(1))) != np.uint64(0)
            break
        i -= 1
    for j in range(i):
        more |= digits[j] != 0
    return _round(magnitude, more, exponent_of_lowest, precision, minimum, infinity), negative


@njit(cache=True, nogil=True)
def write_sums(
    sums: Any,
    firsts: Any,
    lasts: Any,
    lanes: Any,
    numbers: Any,
    ends: Any,
    digit_bits: int,
    exponent: int,
    divisor: int,
    union: Any,
    precision: int,
    exponent_bits: int,
    minimum: int,
    infinity: Any,
    out: Any,
) -> None:
    """out = 0, then out[union[k]] = the bits of coordinate k's sum / divisor, rounded once.

    The first arguments are add_digits'. ``exponent`` is that of limb 0's lowest bit; the last arguments
    describe ``out``'s format. A coordinate whose digits span more than two limbs takes 60 ns and more instead
    of 8, but those are few where it matters.
    """
    out[:] = 0
    width = sums.size
    limbs = ends.size
    fraction = np.int64(FRACTION if divisor > 1 else 0)
    wide = np.empty(fraction + limbs + 1, np.int64)
    cursors = np.zeros(limbs, np.int64)
    for i in range(1, limbs):  # a loop, as numba takes seconds to compile the assignment of a slice
        cursors[i] = ends[i - 1]
    sign_bit = np.uint64(precision - 1 + exponent_bits)
    for k in range(width):
        if firsts[k] == EMPTY:
            continue
        first = np.int64(firsts[k])
        lowest = np.int64(exponent) + first * digit_bits
        if lasts[k] <= first + 1:
            if sums[k] == 0:
                continue
            negative = sums[k] < 0
            magnitude = np.uint64(abs(sums[k]))
            more = False
            if divisor > 1:
                magnitude, more, lowest = _divide(magnitude, lowest, np.uint64(divisor))
            bits = _round(magnitude, more, lowest, precision, minimum, infinity)
        else:
            span = np.int64(lasts[k]) - first + 1
            wide[:fraction] = 0
            for i in range(span):
                limb = first + i
                number = limb * width + k
                at = number
                if numbers.size:
                    at = cursors[limb]
                    while at < ends[limb] and np.int64(numbers[at]) < number:
                        at += 1
                    cursors[limb] = at
                    if at == ends[limb] or np.int64(numbers[at]) != number:
                        wide[fraction + i] = 0
                        continue
                wide[fraction + i] = np.int32(lanes[at])
            wide[fraction + span] = 0
            lowest -= fraction * digit_bits
            count = fraction + span + 1
            bits, negative = _write_wide(
                wide, count, digit_bits, lowest, divisor, precision, minimum, infinity
            )
        out[union[k]] = bits | np.uint64(negative) << sign_bit
