"""The codec's loops, compiled by numba without the GIL and cached on disk.

They check nothing: the functions beside them own the checks. Arguments named ``*bits`` are the
coordinates viewed as unsigned integers of their width.
"""

from typing import Any

import numpy as np
from numba import njit

from switchreduce.worker.codec.bits import WORD, above, popcount, trailing_zeros
from switchreduce.worker.codec.layout import buckets_of

COORDINATE_BITS = 30  # of a plan's order entry; the two bits above say which of the three buckets is free
_COORDINATE = np.uint32((1 << COORDINATE_BITS) - 1)
_ONE = np.uint64(1 << 32)  # a bucket under construction: how many coordinates above, their XOR below
_LOW = np.uint64(0xFFFF_FFFF)


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
    x: Any, bits: Any, mask: Any, threshold: Any, first: float, second: float, index: Any, values: Any
) -> int:
    """Index of the coordinates whose masked bits exceed ``threshold``, and their rint(x * first * second)
    in order; returns how many."""
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
        while word:
            i = trailing_zeros(word)
            word = np.uint32(word & np.uint32(word - np.uint32(1)))
            values[count] = np.int32(np.rint(np.float64(x[start + i]) * first * second))
            count += 1
    return count


@njit(cache=True, nogil=True)
def count_bits(words: Any) -> int:
    """Number of set bits."""
    count = 0
    for i in range(words.size):
        count += popcount(words[i])
    return count


@njit(cache=True, nogil=True)
def peel(union: Any, seed: Any, segments: Any, length: Any, buckets: Any, queue: Any, order: Any) -> int:
    """Try to peel the union's coordinates out of their buckets; returns how many came out.

    order[k] becomes the k-th coordinate peeled and, above COORDINATE_BITS, which of its three buckets
    held it alone. ``buckets`` uint64[m] and ``queue`` uint32[m + 1] are scratch. A queue rather than a
    stack: neighbouring steps are then independent, and the processor overlaps their cache misses
    (40 ns against 60 ns per coordinate).
    """
    buckets[:] = np.uint64(0)
    for lane in range(union.size):
        word = union[lane]
        while word:
            i = trailing_zeros(word)
            word = np.uint32(word & np.uint32(word - np.uint32(1)))
            coordinate = np.uint64(lane * WORD + i)
            a, b, c = buckets_of(coordinate, seed, segments, length)
            buckets[a] = (buckets[a] + _ONE) ^ coordinate
            buckets[b] = (buckets[b] + _ONE) ^ coordinate
            buckets[c] = (buckets[c] + _ONE) ^ coordinate
    # The queue's end moves by a comparison's result, not by a branch: whether a bucket now holds one
    # coordinate is a coin toss for the branch predictor. Each bucket enters once at most: counts only fall.
    tail = 0
    for bucket in range(buckets.size):
        queue[tail] = np.uint32(bucket)
        tail += buckets[bucket] >> np.uint64(32) == np.uint64(1)
    peeled = 0
    head = 0
    while head < tail:
        bucket = np.uint64(queue[head])
        head += 1
        if buckets[bucket] >> np.uint64(32) != np.uint64(1):
            continue  # its coordinate has come out of another bucket meanwhile
        coordinate = buckets[bucket] & _LOW
        a, b, c = buckets_of(coordinate, seed, segments, length)
        free = np.uint64(0) if bucket == a else (np.uint64(1) if bucket == b else np.uint64(2))
        order[peeled] = np.uint32(coordinate | free << np.uint64(COORDINATE_BITS))
        peeled += 1
        for touched in (a, b, c):
            left = (buckets[touched] - _ONE) ^ coordinate
            buckets[touched] = left
            queue[tail] = np.uint32(touched)
            tail += left >> np.uint64(32) == np.uint64(1)
    return peeled


@njit(cache=True, nogil=True)
def encode_sketch(
    index: Any, values: Any, right: Any, mask: Any, seed: Any, segments: Any, length: Any, lanes: Any
) -> None:
    """Add ``(value >> right) & mask`` of each indexed coordinate to its three buckets, modulo 2**32."""
    lanes[:] = np.uint32(0)
    k = 0
    for lane in range(index.size):
        word = index[lane]
        while word:
            i = trailing_zeros(word)
            word = np.uint32(word & np.uint32(word - np.uint32(1)))
            value = np.uint32(values[k] >> right) & mask
            k += 1
            a, b, c = buckets_of(np.uint64(lane * WORD + i), seed, segments, length)
            lanes[a] += value
            lanes[b] += value
            lanes[c] += value


@njit(cache=True, nogil=True)
def encode_dense(index: Any, values: Any, right: Any, mask: Any, lanes: Any) -> None:
    """Write ``(value >> right) & mask`` of each indexed coordinate to the coordinate's own lane."""
    lanes[:] = np.uint32(0)
    k = 0
    for lane in range(index.size):
        word = index[lane]
        while word:
            i = trailing_zeros(word)
            word = np.uint32(word & np.uint32(word - np.uint32(1)))
            lanes[lane * WORD + i] = np.uint32(values[k] >> right) & mask
            k += 1


@njit(cache=True, nogil=True)
def follow(lanes: Any, order: Any, seed: Any, segments: Any, length: Any, sums: Any) -> None:
    """sums[k] = sum of the k-th coordinate of ``order``; leaves 0 in every lane if the sums add up."""
    for k in range(order.size):
        entry = order[k]
        free = entry >> np.uint32(COORDINATE_BITS)
        a, b, c = buckets_of(np.uint64(entry & _COORDINATE), seed, segments, length)
        value = lanes[a if free == 0 else (b if free == 1 else c)]
        lanes[a] -= value
        lanes[b] -= value
        lanes[c] -= value
        sums[k] = value


@njit(cache=True, nogil=True)
def scatter(sums: Any, order: Any, divisor: float, first: float, second: float, out: Any) -> None:
    """out = 0, then out[coordinate of order[k]] = int32 sums[k] / divisor * first * second."""
    out[:] = 0
    for k in range(order.size):
        value = np.float64(np.int32(sums[k])) / divisor * first * second
        out[np.uint64(order[k] & _COORDINATE)] = value


@njit(cache=True, nogil=True)
def dequantise(sums: Any, divisor: float, first: float, second: float, out: Any) -> None:
    """out[i] = int32 sums[i] / divisor * first * second."""
    for i in range(out.size):
        out[i] = np.float64(np.int32(sums[i])) / divisor * first * second
