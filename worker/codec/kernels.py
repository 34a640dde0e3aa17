"""The codec's loops, compiled by numba without the GIL and cached on disk.

Everything that gets compiled is in this one file: numba's cache notices a change of the file that a loop is
in, not of the files it calls into, and stale code here would mean ranks that disagree.

The loops check nothing; the functions that call them do. Arguments named ``bits`` are the coordinates
viewed as unsigned integers of their width.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

WORD = 32  # coordinates per index lane
BATCH = 4  # set bits taken from a word without a branch; lists of them need this much spare room

# one 64-bit word: a count or a bucket above, a coordinate or the XOR of coordinates below
_HIGH = np.uint64(32)
_LOW = np.uint64(0xFFFF_FFFF)
_ONE = np.uint64(1 << 32)
_FIELD = np.uint64(0xFFFF)  # of the hash


@intrinsic
def above(typingctx: Any, bits: Any, start: Any, mask: Any, threshold: Any) -> tuple[Any, Any]:
    """uint32 whose bit i says ``(bits[start + i] & mask) > threshold``, for i = 0..31.

    ``bits`` is a C-contiguous uint32 or uint64 array, ``mask`` and ``threshold`` are of its dtype. No
    bounds are checked: the caller guarantees ``start + 32 <= bits.size``.
    """
    signature = types.uint32(bits, types.intp, bits.dtype, bits.dtype)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        width = sig.args[0].dtype.bitwidth
        vector = ir.VectorType(ir.IntType(width), WORD)
        undefined = ir.Constant(vector, ir.Undefined)
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), WORD), [0] * WORD)

        def splat(scalar: Any) -> Any:
            one = builder.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
            return builder.shuffle_vector(one, undefined, everywhere)

        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        pointer = builder.bitcast(builder.gep(data, [args[1]]), vector.as_pointer())
        values = builder.load(pointer, align=width // 8)
        flags = builder.icmp_unsigned(">", builder.and_(values, splat(args[2])), splat(args[3]))
        return builder.bitcast(flags, ir.IntType(WORD))

    return signature, codegen


@intrinsic
def trailing_zeros(typingctx: Any, word: Any) -> tuple[Any, Any]:
    """Position of the lowest set bit of a uint32, as intp; 0 if there is none.

    Never 32, so that a position from a word that has run out still lies in the word's coordinates.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        count = builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))
        count = builder.and_(count, ir.Constant(ir.IntType(WORD), WORD - 1))
        return builder.zext(count, ir.IntType(types.intp.bitwidth))

    return types.intp(types.uint32), codegen


@intrinsic
def popcount(typingctx: Any, word: Any) -> tuple[Any, Any]:
    """Number of set bits of a uint32, as intp."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.zext(builder.ctpop(args[0]), ir.IntType(types.intp.bitwidth))

    return types.intp(types.uint32), codegen


@njit(inline="always")
def buckets_of(coordinate: Any, seed: Any, segments: Any, length: Any) -> Any:
    """The three distinct buckets of a coordinate; all arguments and results uint64.

    The hash is MurmurHash3's 64-bit finaliser (Appleby, public domain) over the coordinate plus a multiple
    of 2**64 / golden ratio per seed (the increment of SplitMix64, Steele et al. 2014). Its four 16-bit
    fields give the first segment and an offset in each of the three, by multiply and shift instead of a
    modulo (Lemire, arXiv 1805.10941).
    """
    h = coordinate + seed * np.uint64(0x9E3779B97F4A7C15)
    h = (h ^ (h >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    h = (h ^ (h >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    h ^= h >> np.uint64(33)
    start = ((h >> np.uint64(48)) * segments >> np.uint64(16)) * length
    a = start + ((h & _FIELD) * length >> np.uint64(16))
    b = start + length + (((h >> np.uint64(16)) & _FIELD) * length >> np.uint64(16))
    c = start + length + length + (((h >> np.uint64(32)) & _FIELD) * length >> np.uint64(16))
    return a, b, c


@njit(cache=True, nogil=True)
def _maximum(bits: Any, mask: Any) -> Any:
    # its own function: LLVM vectorises this loop alone but not inside block_maxima (3.8 ms against 12 ms
    # for 64 MB)
    largest = bits.dtype.type(0)
    for i in range(bits.size):
        masked = bits.dtype.type(bits[i] & mask)
        largest = masked if masked > largest else largest
    return largest


@njit(cache=True, nogil=True)
def block_maxima(bits: Any, mask: Any, block: int, maxima: Any) -> None:
    """maxima[k] = largest ``bits & mask`` of block k."""
    for k in range(maxima.size):
        maxima[k] = _maximum(bits[k * block : (k + 1) * block], mask)


@njit(cache=True, nogil=True)
def _extremes(x: Any) -> Any:
    lowest = np.int32(0)
    highest = np.int32(0)
    for i in range(x.size):
        lowest = min(lowest, x[i])
        highest = max(highest, x[i])
    return max(np.int64(highest), -np.int64(lowest))


@njit(cache=True, nogil=True)
def block_maxima_signed(x: Any, block: int, maxima: Any) -> None:
    """maxima[k] = largest |x| of block k, for int32 x."""
    for k in range(maxima.size):
        maxima[k] = np.uint32(_extremes(x[k * block : (k + 1) * block]))


@njit(cache=True, nogil=True)
def quantise_block(
    x: Any,
    bits: Any,
    mask: Any,
    threshold: Any,
    first: float,
    second: float,
    index: Any,
    coordinates: Any,
    values: Any,
) -> int:
    """Index and list the coordinates whose masked bits exceed ``threshold``, with values
    rint(x * first * second); returns how many. The lists need room for x.size + BATCH.

    Set bits are taken BATCH at a time, as simdjson does (Langdale & Lemire, arXiv 1902.08318): the surplus
    is overwritten by the next word, and a word of a sparse block costs one predictable branch (64 MB with
    5 % non-zeros: 6.6 ms against 15.7 ms bit by bit).
    """
    count = 0
    whole = x.size // WORD
    for lane in range(index.size):
        start = lane * WORD
        if lane < whole:
            word = above(bits, start, mask, threshold)
        else:
            word = np.uint32(0)
            for i in range(x.size - start):
                if bits[start + i] & mask > threshold:
                    word |= np.uint32(1) << np.uint32(i)
        index[lane] = word
        end = count + popcount(word)
        while word:
            for j in range(BATCH):
                coordinate = start + trailing_zeros(word)
                coordinates[count + j] = np.uint32(coordinate)
                values[count + j] = np.int32(np.rint(np.float64(x[coordinate]) * first * second))
                word = np.uint32(word & np.uint32(word - np.uint32(1)))
            count += BATCH
        count = end
    return count


@njit(cache=True, nogil=True)
def quantise_dense(x: Any, first: float, second: float, right: Any, mask: Any, lanes: Any) -> None:
    """lanes[i] = ``(rint(x[i] * first * second) >> right) & mask``."""
    for i in range(lanes.size):
        value = np.int32(np.rint(np.float64(x[i]) * first * second))
        lanes[i] = np.uint32(np.int32(value >> right)) & mask


@njit(cache=True, nogil=True)
def count_bits(words: Any) -> int:
    """Number of set bits."""
    count = 0
    for lane in range(words.size):
        count += popcount(words[lane])
    return count


@njit(cache=True, nogil=True)
def list_bits(words: Any, coordinates: Any) -> None:
    """List the positions of the set bits. The list needs room for BATCH more."""
    count = 0
    for lane in range(words.size):
        word = words[lane]
        end = count + popcount(word)
        while word:
            for j in range(BATCH):
                coordinates[count + j] = np.uint32(lane * WORD + trailing_zeros(word))
                word = np.uint32(word & np.uint32(word - np.uint32(1)))
            count += BATCH
        count = end


@njit(cache=True, nogil=True)
def peel(
    coordinates: Any, seed: Any, segments: Any, length: Any, buckets: Any, queue: Any, order: Any
) -> int:
    """Try to peel the coordinates out of their buckets; returns how many came out.

    order[k] becomes the k-th coordinate peeled and, in the upper half, the bucket that held it alone.
    ``buckets`` uint64[m] and ``queue`` uint32[m + 1] are scratch. A queue rather than a stack: its
    neighbouring steps are independent, so that the processor overlaps their cache misses (40 ns against
    60 ns per coordinate on a busy machine).
    """
    buckets[:] = np.uint64(0)
    for k in range(coordinates.size):
        coordinate = np.uint64(coordinates[k])
        for bucket in buckets_of(coordinate, seed, segments, length):
            buckets[bucket] = (buckets[bucket] + _ONE) ^ coordinate
    # The queue's end moves by the result of a comparison, not by a branch, which would often be
    # mispredicted. Counts only fall, so a bucket enters once at most.
    tail = 0
    for bucket in range(buckets.size):
        queue[tail] = np.uint32(bucket)
        tail += buckets[bucket] >> _HIGH == np.uint64(1)
    peeled = 0
    head = 0
    while head < tail:
        free = np.uint64(queue[head])
        head += 1
        if buckets[free] >> _HIGH != np.uint64(1):
            continue  # its coordinate has come out of another bucket meanwhile
        coordinate = buckets[free] & _LOW
        order[peeled] = coordinate | free << _HIGH
        peeled += 1
        for bucket in buckets_of(coordinate, seed, segments, length):
            left = (buckets[bucket] - _ONE) ^ coordinate
            buckets[bucket] = left
            queue[tail] = np.uint32(bucket)
            tail += left >> _HIGH == np.uint64(1)
    return peeled


@njit(cache=True, nogil=True)
def encode_sketch(
    coordinates: Any, values: Any, right: Any, mask: Any, seed: Any, segments: Any, length: Any, lanes: Any
) -> None:
    """Add ``(value >> right) & mask`` of each coordinate to its three buckets, modulo 2**32."""
    lanes[:] = np.uint32(0)
    for k in range(coordinates.size):
        value = np.uint32(np.int32(values[k] >> right)) & mask
        for bucket in buckets_of(np.uint64(coordinates[k]), seed, segments, length):
            lanes[bucket] += value


@njit(cache=True, nogil=True)
def encode_dense(coordinates: Any, values: Any, right: Any, mask: Any, lanes: Any) -> None:
    """Write ``(value >> right) & mask`` of each coordinate to the lane of its own, 0 to the others."""
    lanes[:] = np.uint32(0)
    for k in range(coordinates.size):
        lanes[coordinates[k]] = np.uint32(np.int32(values[k] >> right)) & mask


@njit(cache=True, nogil=True)
def encode_packed(index: Any, values: Any, right: Any, mask: Any, union: Any, lanes: Any) -> Any:
    """lanes[k] = ``(value >> right) & mask`` at the k-th coordinate of ``union``, 0 where the rank has none.

    ``index`` is the rank's, ``values`` are in its order. Returns how many found their place: all, unless the
    union lacks a coordinate. Without a branch, which independent supports would make unpredictable, and by
    the index's bit rather than by comparing coordinates, which would wait for the position before.
    """
    if values.size == 0:
        lanes[:] = np.uint32(0)
        return np.int64(0)
    position = np.int64(0)
    last = values.size - 1
    for k in range(union.size):
        mine = index[union[k] >> np.uint32(5)] >> (union[k] & np.uint32(31)) & np.uint32(1)
        value = np.uint32(np.int32(values[min(position, last)] >> right)) & mask
        lanes[k] = value & np.uint32(-np.int32(mine))
        position += np.int64(mine)
    return position


@njit(cache=True, nogil=True)
def follow(lanes: Any, order: Any, seed: Any, segments: Any, length: Any, sums: Any) -> None:
    """sums[k] = sum of the k-th coordinate of ``order``; leaves 0 in every lane if the sums add up."""
    for k in range(order.size):
        value = lanes[order[k] >> _HIGH]
        for bucket in buckets_of(order[k] & _LOW, seed, segments, length):
            lanes[bucket] -= value
        sums[k] = value


@njit(cache=True, nogil=True)
def scatter(sums: Any, order: Any, start: Any, divisor: float, first: float, second: float, out: Any) -> None:
    """out = 0, then out[coordinate of order[k] - start] = int32 sums[k] / divisor * first * second.

    ``order`` has the coordinate in the lower half of uint64, or is uint32. ``start`` is uint64.
    """
    out[:] = 0
    for k in range(order.size):
        out[(order[k] & _LOW) - start] = np.float64(np.int32(sums[k])) / divisor * first * second


@njit(cache=True, nogil=True)
def dequantise(sums: Any, divisor: float, first: float, second: float, out: Any) -> None:
    """out[i] = int32 sums[i] / divisor * first * second."""
    for i in range(out.size):
        out[i] = np.float64(np.int32(sums[i])) / divisor * first * second
