"""Which way is fastest for a call: a cost model, fed with what earlier calls measured.

Seconds of a call = round trips + lanes * (measured seconds a lane) + the codec's own time a coordinate. Each
rank estimates for itself and votes (agreement.py), so nothing here needs to be the same on all ranks.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field

from switchreduce.worker import codec
from switchreduce.worker.agreement import Agreed, Way
from switchreduce.worker.calls import CallSpec
from switchreduce.worker.codec import SHAPES, Occupancy
from switchreduce.worker.sparse import SparseStream
from switchreduce.worker.stream import Stream

# Nanoseconds of the codec, one thread (`switchreduce bench codec` prints them for this machine).
DENSE_NS = 1.2  # a coordinate: quantise, write, read, dequantise
SPARSE_NS = 0.6  # a coordinate: quantise, clear the result
FLAT_NS = 0.35  # a coordinate: take the flat index, list what the union of all ranks' has
LEVELS_NS = 3.0  # a bit of an index in levels: the same
UNION_NS = 8.0  # a coordinate of the union: list, encode, scatter

INITIAL_LANE_NS = 30.0  # before any call was measured
GAIN = 1 / 4  # of a new measurement in the smoothed one
MEASURED_LANES = 1 << 14  # sent in a call, at least, to say what a lane costs
REMEMBERED = 1024  # kinds of calls
TINY = 1 << 12  # coordinates, up to which looking at the array costs more than it can save


MINIMISE = ("time", "bytes")


@dataclass
class Planner:
    """One rank's estimates. ``seconds_a_lane`` includes the wait for switch and other ranks.

    ``minimise``: "time", or "bytes" for a link that others need too.
    """

    world_size: int
    minimise: str = "time"
    seconds_a_lane: float = INITIAL_LANE_NS * 1e-9
    _copies: OrderedDict[tuple[object, ...], float] = field(default_factory=OrderedDict)

    def vote(self, spec: CallSpec, stream: Stream | SparseStream, round_trip: float) -> tuple[Way, int]:
        """(the way this rank would make the call, its number of non-zeros as estimated).

        ``round_trip`` in seconds, 0.0 while unknown.
        """
        # integers need no digits to be exact
        codec_name = "packed" if spec.codec == "exact" and stream.dtype.kind == "i" else spec.codec
        if codec_name == "dense" or stream.size == 0:
            return Way("dense"), 0
        if stream.size <= TINY:
            return Way("dense" if codec_name == "auto" else codec_name), 0
        occupancy = codec.look(stream.sample())
        copies = self._copies.get(spec.kind, 1.0)  # a dense call for want of knowledge costs most
        if self.minimise == "bytes":
            place, bits = codec.best_shape(occupancy, copies)
        else:
            bit = self.seconds_a_lane / 32
            prices = (round_trip / stream.size, LEVELS_NS * 1e-9, FLAT_NS * 1e-9)
            place, bits = codec.best_shape(occupancy, copies, *(price / bit for price in prices))
        way = Way("packed" if codec_name == "auto" else codec_name, SHAPES[place])
        if codec_name == "auto" and self._dense_is_better(occupancy, copies, bits, stream.size, round_trip):
            way = Way("dense")
        return way, round(occupancy.density * stream.size)

    def _dense_is_better(
        self, occupancy: Occupancy, copies: float, bits: float, size: int, round_trip: float
    ) -> bool:
        union = 1 - (1 - occupancy.density) ** copies
        lanes = bits / 32 + union  # a coordinate
        if self.minimise == "bytes":
            return lanes >= 1
        sparse = lanes * self.seconds_a_lane + (SPARSE_NS + FLAT_NS + UNION_NS * union) * 1e-9
        return size * (self.seconds_a_lane + DENSE_NS * 1e-9) <= size * sparse + round_trip

    def learn(
        self, spec: CallSpec, agreed: Agreed, union: int, size: int, network_seconds: float, lanes: int
    ) -> None:
        """Take what a call showed: its union, and the time it spent outside the codec for ``lanes`` sent."""
        if lanes >= MEASURED_LANES:
            self.seconds_a_lane += GAIN * (network_seconds / lanes - self.seconds_a_lane)
        if agreed.nonzeros > 0:
            self._copies[spec.kind] = independent_copies(
                agreed.nonzeros / size, union / size, self.world_size
            )
            self._copies.move_to_end(spec.kind)
            while len(self._copies) > REMEMBERED:
                self._copies.popitem(last=False)


def independent_copies(density: float, union: float, world_size: int) -> float:
    """How many independent supports of ``density`` have a union as large; 1 to ``world_size``."""
    if not 0 < density < 1 or not 0 < union < 1:
        return 1.0
    return min(max(math.log1p(-union) / math.log1p(-density), 1.0), float(world_size))
