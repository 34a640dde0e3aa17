"""One allreduce as a sequence of steps over the slot protocol.

A call is a generator. It queues segments on the engine and yields the one it needs next (or None: let
packets flow, nothing is needed yet); whoever drives it comes back when that segment is done. All ranks run
the same steps and queue the same segments in the same order, because every choice depends only on what all
ranks know: the call's description and what the switch has already combined.

Steps:
  1. One MAX chunk says whether the ranks make the same call (a fingerprint and its complement both come back
     unchanged only if all sent the same) and whether a rank refuses to; its other lanes carry the ranks'
     votes (agreement.py) and the magnitude keys of the first blocks. More chunks carry the rest.
  2. A block at a time: the index (OR), in one or more levels, and, once the union is known, the values (SUM).
     Blocks overlap (pipeline.py), so that their round trips hide.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

import numpy as np

from switchreduce.errors import SumOverflowError
from switchreduce.worker import codec
from switchreduce.worker.agreement import Agreed, Way, agree
from switchreduce.worker.calls import CallSpec
from switchreduce.worker.codec import BlockScale, Plan, UnionSearch, Workspace
from switchreduce.worker.pipeline import Block, allocate, chunks_for, run_blocks
from switchreduce.worker.stream import Stream, narrow
from switchreduce.worker.transport.engine import Op, Segment, SlotEngine

# Lanes that the segments of one call hold together at most: values of four blocks with two limbs each, as
# many as the pipeline has under way, and the levels of their indexes.
ARENA_LANES = 4 * 2 * codec.BLOCK + 24 * codec.index_lanes(codec.BLOCK)


def arena_rows(lanes: int) -> int:
    """Chunks that the segments of one call hold together at most."""
    return chunks_for(ARENA_LANES, lanes)


@dataclass
class Outcome:
    """What a call learned that the next one like it can use; the same on all ranks."""

    agreed: Agreed
    union: int = 0  # coordinates that are not zero on some rank


@dataclass
class Call:
    """One call on its way: its input, its result and what becomes known meanwhile."""

    engine: SlotEngine
    spec: CallSpec
    world_size: int
    stream: Stream
    out: np.ndarray  # of the stream's dtype and size
    workspace: Workspace
    overflow: int = -1  # coordinate of the first sum that does not fit
    union: int = 0
    scales: list[BlockScale] = field(default_factory=list)

    def steps(self, keys: np.ndarray, way: Way, nonzeros: int) -> Generator[Segment | None, None, Outcome]:
        """Write the sum or mean over ranks into ``out``.

        ``keys`` are the magnitude keys of the stream's blocks, ``way`` and ``nonzeros`` this rank's votes.
        Raises Disagreement, Refused or, once every block has been through the switch, SumOverflowError; the
        same on every rank.
        """
        agreed = yield from agree(self.engine, self.spec, keys, way, nonzeros)
        self.scales = [
            BlockScale.from_key(self.stream.wide, int(key), self.world_size) for key in agreed.keys
        ]
        yield from run_blocks(self._blocks(agreed.way))
        if self.overflow >= 0:
            number, index = self.stream.locate(self.overflow)
            which = f" of array {number}" if len(self.spec.shapes) > 1 else ""
            raise SumOverflowError(
                f"the sum at index {index}{which} does not fit {self.spec.dtype}; no array was changed"
            )
        return Outcome(agreed, self.union)

    def _blocks(self, way: Way) -> Iterator[Block]:
        for number, scale in enumerate(self.scales):
            start = number * codec.BLOCK
            stop = min(start + codec.BLOCK, self.stream.size)
            if scale.is_empty:
                self.out[start:stop] = 0
            elif way.codec == "dense":
                yield self._dense_block(start, stop, scale)
            else:
                yield self._sparse_block(start, stop, scale, way)

    def _dense_block(self, start: int, stop: int, scale: BlockScale) -> Block:
        plan = codec.plan_dense(stop - start, scale.limbs)
        segment = yield from allocate(self.engine, Op.SUM, plan.lanes)
        codec.encode_values(self.stream.values(start, stop), scale, lanes_of(segment, plan.lanes))
        self.engine.queue(segment)
        yield segment
        self.union += stop - start
        self._decode(segment, plan, scale, start, stop)

    def _sparse_block(self, start: int, stop: int, scale: BlockScale, way: Way) -> Block:
        quantised = codec.quantise(self.stream.values(start, stop), scale)
        search = UnionSearch(quantised.index, quantised.size, way.shape)
        while not search.done:
            segment = yield from allocate(self.engine, Op.OR, search.lanes)
            search.write(lanes_of(segment, search.lanes))
            self.engine.queue(segment)
            yield segment
            search.read(lanes_of(segment, search.lanes))
            self.engine.release(segment)
        union = search.coordinates
        self.union += union.size
        if way.codec == "sketch":
            plan = codec.plan_sketch(union, quantised.size, scale.limbs, self.workspace)
        else:
            plan = codec.plan_packed(union, quantised.size, scale.limbs)
        segment = yield from allocate(self.engine, Op.SUM, plan.lanes)
        codec.encode(quantised, plan, lanes_of(segment, plan.lanes))
        self.engine.queue(segment)
        del quantised, search
        yield segment
        self._decode(segment, plan, scale, start, stop)

    def _decode(self, segment: Segment, plan: Plan, scale: BlockScale, start: int, stop: int) -> None:
        target = self.out[start:stop]
        result = target
        if scale.dtype != target.dtype:
            result = self.workspace.take("wide", scale.dtype, stop - start)
        lanes = lanes_of(segment, plan.lanes)
        overflow = codec.decode(lanes, plan, scale, result, self.spec.op, self.workspace)  # type: ignore[arg-type]
        self.engine.release(segment)
        if result is not target:
            narrow(result, target)
        if overflow >= 0 and not 0 <= self.overflow < start:
            self.overflow = start + overflow


def lanes_of(segment: Segment, count: int) -> np.ndarray:
    """The first ``count`` lanes of a segment: what its chunks carry besides padding."""
    return segment.lanes.reshape(-1)[:count]
