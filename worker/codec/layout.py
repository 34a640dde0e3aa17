"""Which buckets a coordinate goes to, and how many buckets a union of a given size needs.

The sketch is a Count Sketch without signs: each coordinate is added to three buckets. Signs exist to make
the *estimate* of a value unbiased; here every sketch is known to peel completely before it is sent, no
value is ever estimated, and signs would buy nothing.

One layout, "binary fuse" (Graf & Lemire, arXiv 2201.01174; spatial coupling after Walzer, arXiv
2001.10500): ``segments + 2`` segments of ``length`` buckets; a coordinate hashes to a first segment and to
one bucket in each of three consecutive segments. With one segment this is three uniform hashes into
thirds, which peel down to 1.222 buckets per coordinate (Molloy 2005); with many, down to about 1.09,
plus the two extra segments and a margin that shrinks with the union.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

MAX_SEGMENT_LENGTH = 1 << 16  # a hash field has 16 bits

# (smallest union, segments, buckets per coordinate, buckets on top). Measured: with these a seed succeeds
# with probability 0.7 to 0.9 below 8,000 coordinates and 0.9 or more above.
_SIZES = (
    (0, 1, 1.234, 14),
    (8_000, 32, 1.228, 0),
    (12_000, 32, 1.218, 0),
    (20_000, 40, 1.205, 0),
    (35_000, 48, 1.195, 0),
    (60_000, 48, 1.178, 0),
    (100_000, 80, 1.165, 0),
    (200_000, 96, 1.152, 0),
    (300_000, 96, 1.143, 0),
    (1_000_000, 200, 1.13, 0),
)

TRIES_PER_SIZE = 4  # seeds tried before the sketch grows
GROWTH = 32  # ... by one part in this many

_FIELD = np.uint64(0xFFFF)


@dataclass(frozen=True)
class Layout:
    """``segments + 2`` segments of ``length`` buckets."""

    segments: int
    length: int

    @property
    def buckets(self) -> int:
        return (self.segments + 2) * self.length


def layout_for(count: int, tries: int = 0) -> Layout:
    """The layout for a union of ``count`` coordinates after ``tries`` seeds have failed.

    Depends on nothing else, so all ranks choose alike.
    """
    segments, factor, extra = next(row[1:] for row in reversed(_SIZES) if row[0] <= count)
    growth = (tries // TRIES_PER_SIZE) / GROWTH
    buckets = (count * factor + min(count, extra)) * (1 + growth)
    return Layout(segments, max(1, -int(-buckets // (segments + 2))))


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
