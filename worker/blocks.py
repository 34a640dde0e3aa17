"""One block's steps through the switch, for each way to send it; generators for pipeline.py."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from switchreduce.worker import codec
from switchreduce.worker.codec import (
    BlockScale,
    ExactScale,
    Plan,
    QuantisedBlock,
    Shape,
    UnionSearch,
    Workspace,
)
from switchreduce.worker.pipeline import Block, allocate
from switchreduce.worker.stream import Marks, Stream, narrow
from switchreduce.worker.transport.engine import Op, Segment, SlotEngine


@dataclass
class BlockSender:
    """Sends blocks of one call; what it finds on the way, the same on every rank.

    ``out`` has the stream's dtype and size. ``overflow``: the first coordinate whose sum does not fit, or -1.
    ``unions``: by start of a block, how many of its coordinates are not zero on some rank.
    """

    engine: SlotEngine
    stream: Stream
    out: np.ndarray
    op: codec.Op
    workspace: Workspace
    overflow: int = -1
    unions: dict[int, int] = field(default_factory=dict)
    open: list[Segment] = field(default_factory=list)  # queued and not released

    def queue(self, segment: Segment) -> None:
        self.engine.queue(segment)
        self.open.append(segment)

    def release(self, segment: Segment) -> None:
        if segment in self.open:
            self.open.remove(segment)
        self.engine.release(segment)

    def dense(self, start: int, stop: int, scale: BlockScale) -> Block:
        """All values."""
        plan = codec.plan_dense(stop - start, scale.limbs)
        segment = yield from allocate(self.engine, Op.SUM, plan.lanes)
        codec.encode_values(self.stream.values(start, stop), scale, lanes_of(segment, plan.lanes))
        self.queue(segment)
        yield segment
        self._decode(segment, plan, scale, start, stop)

    def packed(self, start: int, stop: int, scale: BlockScale, shape: Shape) -> Block:
        """The index, then the values of the union in order."""
        quantised = codec.quantise(self.stream.values(start, stop), scale)
        union = yield from self._find_union(quantised.index, quantised.size, shape)
        self.unions[start] = union.size
        plan = codec.plan_packed(union, quantised.size, scale.limbs)
        yield from self._send_values(quantised, plan, scale, start)

    def sketch(self, start: int, stop: int, scale: BlockScale, shape: Shape) -> Block:
        """The index, then the values in a sketch that is known to peel."""
        quantised = codec.quantise(self.stream.values(start, stop), scale)
        union = yield from self._find_union(quantised.index, quantised.size, shape)
        self.unions[start] = union.size
        plan = codec.plan_sketch(union, quantised.size, scale.limbs, self.workspace)
        yield from self._send_values(quantised, plan, scale, start)

    def sketch_at_once(self, start: int, stop: int, scale: BlockScale, expected: int) -> Block:
        """Index and sketch together, for a union of about ``expected`` coordinates and one limb.

        What does not peel, because the union is larger or by bad luck, goes in a second round of its own.
        """
        quantised = codec.quantise(self.stream.values(start, stop), scale)
        blind = codec.plan_blind(expected, quantised.size)
        search = UnionSearch(quantised.index, quantised.size, codec.FLAT)
        index = yield from allocate(self.engine, Op.OR, search.lanes)
        search.write(lanes_of(index, search.lanes))
        self.queue(index)
        values = yield from allocate(self.engine, Op.SUM, blind.lanes)
        codec.encode(quantised, blind, lanes_of(values, blind.lanes))
        self.queue(values)
        yield index
        search.read(lanes_of(index, search.lanes))
        self.release(index)
        union = search.coordinates
        self.unions[start] = union.size
        plan, rest = codec.peel_blind(blind, union, self.workspace)
        yield values
        again = yield from allocate(self.engine, Op.SUM, rest.size)
        rest_sums = lanes_of(again, rest.size)
        if rest.size:
            plan_again = codec.plan_packed(rest, quantised.size)
            codec.encode(codec.part_of(quantised, rest), plan_again, rest_sums)
            self.queue(again)
            yield again
        with self._result(scale, start, stop) as result:
            lanes = lanes_of(values, blind.lanes)
            codec.decode_blind(lanes, plan, rest, rest_sums, scale, result, self.op, self.workspace)
        self.release(again)
        self.release(values)

    def exact(self, start: int, stop: int, scale: ExactScale, shape: Shape) -> Block:
        """The index, the index of the digits where that pays, then the digits."""
        listed = codec.list_values(self.stream.raw(start, stop), workspace=self.workspace)
        union = yield from self._find_union(listed.index, listed.size, shape)
        self.unions[start] = union.size
        digits = codec.digitise(listed, union, scale, self.workspace)
        del listed
        if scale.has_digit_index:
            used = yield from self._find_union(digits.index, digits.size, scale.digit_shape)
            plan = codec.plan_packed(used, digits.size)
        else:
            plan = codec.plan_dense(digits.size)
        segment = yield from allocate(self.engine, Op.SUM, plan.lanes)
        codec.encode(digits, plan, lanes_of(segment, plan.lanes))
        self.queue(segment)
        del digits
        yield segment
        lanes = lanes_of(segment, plan.lanes)
        codec.compose(lanes, plan, union, scale, self.out[start:stop], self.op, self.workspace)
        self.release(segment)

    def nonfinite(self, start: int, stop: int, marks: Marks) -> Block:
        """What is NaN or infinite on some rank, once the block's values are there: two indexes behind each
        other, of what is +inf or NaN and of what is -inf or NaN, since both together are NaN."""
        size = stop - start
        index = np.zeros(codec.index_lanes(2 * size), np.uint32)
        for coordinates, offset in ((marks.up, 0), (marks.down, size)):
            bits = coordinates[(coordinates >= start) & (coordinates < stop)] - start + offset
            np.bitwise_or.at(index, bits // 32, (1 << bits % 32).astype(np.uint32))
        union = yield from self._find_union(index, 2 * size, codec.SHAPES[0])
        up, down = union[union < size], union[union >= size] - np.uint32(size)
        part = self.out[start:stop]
        part[up] = np.inf
        part[down] = -np.inf
        part[np.intersect1d(up, down)] = np.nan

    def _find_union(
        self, index: np.ndarray, size: int, shape: Shape
    ) -> Generator[Segment | None, None, np.ndarray]:
        search = UnionSearch(index, size, shape)
        while not search.done:
            segment = yield from allocate(self.engine, Op.OR, search.lanes)
            search.write(lanes_of(segment, search.lanes))
            self.queue(segment)
            yield segment
            search.read(lanes_of(segment, search.lanes))
            self.release(segment)
        return search.coordinates

    def _send_values(self, quantised: QuantisedBlock, plan: Plan, scale: BlockScale, start: int) -> Block:
        segment = yield from allocate(self.engine, Op.SUM, plan.lanes)
        codec.encode(quantised, plan, lanes_of(segment, plan.lanes))
        self.queue(segment)
        yield segment
        self._decode(segment, plan, scale, start, start + plan.size)

    def _decode(self, segment: Segment, plan: Plan, scale: BlockScale, start: int, stop: int) -> None:
        with self._result(scale, start, stop) as result:
            lanes = lanes_of(segment, plan.lanes)
            overflow = codec.decode(lanes, plan, scale, result, self.op, self.workspace)
        self.release(segment)
        if overflow >= 0 and not 0 <= self.overflow < start:
            self.overflow = start + overflow

    @contextmanager
    def _result(self, scale: BlockScale, start: int, stop: int) -> Iterator[np.ndarray]:
        """Where a block's result is decoded to, in the scale's dtype; afterwards it is in ``out``."""
        target = self.out[start:stop]
        if scale.dtype == target.dtype:
            yield target
            return
        wide = self.workspace.take("wide", scale.dtype, stop - start)
        yield wide
        narrow(wide, target)


def lanes_of(segment: Segment, count: int) -> np.ndarray:
    """The first ``count`` lanes of a segment: what its chunks carry besides padding."""
    return segment.lanes.reshape(-1)[:count]
