"""The loops of the index's levels, compiled by numba without the GIL and cached on disk.

A *group* is a run of coordinates of a level's size; group j of size s starts at coordinate j * s. Sizes are
up to 32 or multiples of 32, so that a group lies in one 64-bit window or in whole words. The loops check
nothing; the functions that call them do.
"""

from typing import Any

import numpy as np
from numba import njit

_WORD = np.int64(32)


@njit(inline="always")
def _window(words: Any, start: Any, size: Any) -> Any:
    """Bits [start, start + size) as uint64, size at most 32; bits beyond the last word are 0."""
    lane = start >> np.int64(5)
    low = np.uint64(words[lane])
    after = lane + 1
    high = np.uint64(words[after]) if after < words.size else np.uint64(0)
    both = (low | high << np.uint64(32)) >> np.uint64(start & np.int64(31))
    return both & ((np.uint64(1) << np.uint64(size)) - np.uint64(1))


@njit(inline="always")
def _occupied(words: Any, start: Any, size: Any) -> Any:
    """Whether a bit of [start, start + size) is set; the part beyond the last word counts as 0."""
    if start >= words.size * _WORD:
        return False
    if size <= _WORD:
        return _window(words, start, size) != np.uint64(0)
    first = start >> np.int64(5)
    for lane in range(first, min(first + (size >> np.int64(5)), words.size)):
        if words[lane] != np.uint32(0):
            return True
    return False


@njit(cache=True, nogil=True)
def write_top(index: Any, size: int, groups: int, bits: Any) -> None:
    """Bit j of ``bits`` (uint32 words, overwritten) says whether group j of ``size`` coordinates is occupied.

    ``index`` is a bitmap of coordinates, in uint32 words too.
    """
    for lane in range(bits.size):
        word = np.uint32(0)
        for j in range(min(_WORD, groups - lane * _WORD)):
            start = (lane * _WORD + j) * size
            word |= np.uint32(_occupied(index, start, size)) << np.uint32(j)
        bits[lane] = word


@njit(cache=True, nogil=True)
def write_level(index: Any, parents: Any, ratio: int, size: int, bits: Any) -> None:
    """Bit q * ratio + j of ``bits`` (overwritten) says whether child j of group ``parents[q]`` is occupied.

    A child has ``size`` coordinates, its parent ``ratio`` children.
    """
    lane = 0
    pending = np.uint64(0)  # bits that fill no whole lane yet
    filled = np.int64(0)
    for q in range(parents.size):
        first = np.int64(parents[q]) * ratio
        j = np.int64(0)
        while j < ratio:
            step = min(ratio - j, _WORD)
            if size == 1:
                start = first + j
                part = _window(index, start, step) if start < index.size * _WORD else np.uint64(0)
            else:
                part = np.uint64(0)
                for k in range(step):
                    found = np.uint64(_occupied(index, (first + j + k) * size, size))
                    part |= found << np.uint64(k)
            pending |= part << np.uint64(filled)
            filled += step
            if filled >= _WORD:
                bits[lane] = np.uint32(pending & np.uint64(0xFFFFFFFF))
                lane += 1
                pending >>= np.uint64(32)
                filled -= _WORD
            j += step
    if filled:
        bits[lane] = np.uint32(pending & np.uint64(0xFFFFFFFF))


@njit(cache=True, nogil=True)
def read_level(bits: Any, parents: Any, ratio: int, children: Any) -> Any:
    """List the children whose bits are set, ascending; returns how many.

    The list needs room for one more than that.
    """
    count = np.int64(0)
    position = np.int64(0)
    for q in range(parents.size):
        first = np.int64(parents[q]) * ratio
        j = np.int64(0)
        while j < ratio:
            step = min(ratio - j, _WORD)
            part = _window(bits, position, step)
            position += step
            for k in range(step):
                # without a branch, which would often be mispredicted
                children[count] = np.uint32(first + j + k)
                count += np.int64(part >> np.uint64(k) & np.uint64(1))
            j += step
    return count
