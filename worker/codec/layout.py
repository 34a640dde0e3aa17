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

# (smallest union, segments, buckets per 1,000 coordinates, buckets on top). Measured over random unions: a
# seed succeeds with probability 0.75 or more (three coordinates: 0.6), from 8,000 on with 0.85 or more, so
# that 1.3 and 1.15 seeds are tried on average. Smaller sketches would peel now and then, at more tries,
# which cost more time than the lanes they save.
_SIZES = (
    (0, 1, 1234, 14),
    (8_000, 32, 1228, 0),
    (12_000, 32, 1218, 0),
    (20_000, 40, 1205, 0),
    (35_000, 48, 1195, 0),
    (60_000, 48, 1178, 0),
    (100_000, 80, 1165, 0),
    (200_000, 96, 1152, 0),
    (300_000, 96, 1143, 0),
    (1_000_000, 200, 1130, 0),
    (2_000_000, 400, 1126, 0),
)

TRIES_PER_SIZE = 8  # seeds tried before the sketch grows: 1 union of 1,000 in 100,000 gets there
GROWTH = 32  # ... by one part in this many


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

    Depends on nothing else and is computed in integers, so all ranks choose alike.
    """
    segments, per_mille, extra = next(row[1:] for row in reversed(_SIZES) if row[0] <= count)
    buckets = count * per_mille // 1000 + min(count, extra)
    buckets += buckets * (tries // TRIES_PER_SIZE) // GROWTH + tries // TRIES_PER_SIZE
    return Layout(segments, -(-buckets // (segments + 2)))
