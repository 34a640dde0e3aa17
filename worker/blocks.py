"""The steps of a piece of a call through the switch, for each way to send it; generators for pipeline.py.

A piece is one block or several in a row. Nothing is written to the caller's arrays here: what a piece comes
to is kept, checked, until the whole call is known to have succeeded.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from switchreduce.worker import codec
from switchreduce.worker.codec import (
    BlockScale,
    ExactScale,
    Plan,
    QuantisedBlock,
    Shape,
    Sums,
    UnionSearch,
    Workspace,
)
from switchreduce.worker.pipeline import Block, allocate
from switchreduce.worker.sparse import SparseStream
from switchreduce.worker.stream import Marks, Result, Stream
from switchreduce.worker.transport.engine import Op, Segment, SlotEngine


@dataclass(frozen=True)
class Piece:
    """Coordinates [start, stop), which take their steps together, and the scales of their blocks."""

    start: int
    stop: int
    scales: tuple[BlockScale, ...] | tuple[ExactScale]

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def is_empty(self) -> bool:
        """Every coordinate of every rank is zero."""
        return all(scale.is_empty for scale in self.scales)

    @property
    def limbs(self) -> int:
        return max(scale.limbs for scale in self.scales)


@dataclass
class PieceSender:
    """Sends pieces of one call; what it finds on the way, the same on every rank.

    ``overflow``: the first coordinate whose sum does not fit, or -1. ``unions``: by start of a piece, how
    many of its coordinates are not zero on some rank. ``special``: which are NaN or infinite.
    """

    engine: SlotEngine
    stream: Stream | SparseStream
    op: codec.Op
    workspace: Workspace
    overflow: int = -1
    unions: dict[int, int] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    special: list[Marks] = field(default_factory=list)
    open: list[Segment] = field(default_factory=list)  # queued and not released

    def queue(self, segment: Segment) -> None:
        self.engine.queue(segment)
        self.open.append(segment)

    def release(self, segment: Segment) -> None:
        if segment in self.open:
            self.open.remove(segment)
        self.engine.release(segment)

    # -- ways to send -----------------------------------------------------------------------------------

    def dense(self, piece: Piece) -> Block:
        """All values of a single block."""
        (scale,) = piece.scales
        assert isinstance(scale, BlockScale)
        plan = codec.plan_dense(piece.size, scale.limbs)
        segment = yield from allocate(self.engine, Op.SUM, plan.lanes)
        values = self.stream.values(piece.start, piece.stop)
        codec.encode_values(values, scale, lanes_of(segment, plan.lanes))
        self.queue(segment)
        yield segment
        sums = codec.collect(lanes_of(segment, plan.lanes), plan)
        self.unions[piece.start] = int(np.count_nonzero(sums.values))
        self._keep(piece, sums)
        self.release(segment)

    def packed(self, piece: Piece, shape: Shape) -> Block:
        """The index, then the values of the union in order."""
        quantised = self._quantise(piece)
        union = yield from self._find_union(quantised.index, quantised.size, shape)
        self.unions[piece.start] = union.size
        yield from self._send_values(quantised, codec.plan_packed(union, piece.size, piece.limbs), piece)

    def sketch(self, piece: Piece, shape: Shape) -> Block:
        """The index, then the values in a sketch that is known to peel."""
        quantised = self._quantise(piece)
        union = yield from self._find_union(quantised.index, quantised.size, shape)
        self.unions[piece.start] = union.size
        plan = codec.plan_sketch(union, piece.size, piece.limbs, self.workspace)
        yield from self._send_values(quantised, plan, piece)

    def sketch_at_once(self, piece: Piece, expected: int) -> Block:
        """Index and sketch together, of a single block with one limb, for a union of about ``expected``.

        What does not peel, because the union is larger or by bad luck, goes in a second round of its own.
        """
        quantised = self._quantise(piece)
        blind = codec.plan_blind(expected, piece.size)
        search = UnionSearch(quantised.index, piece.size, codec.FLAT)
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
        self.unions[piece.start] = union.size
        plan, rest = codec.peel_blind(blind, union, self.workspace)
        yield values
        again = yield from allocate(self.engine, Op.SUM, rest.size)
        rest_sums = lanes_of(again, rest.size)
        if rest.size:
            codec.encode(codec.part_of(quantised, rest), codec.plan_packed(rest, piece.size), rest_sums)
            self.queue(again)
            yield again
        self._keep(piece, codec.collect_blind(lanes_of(values, blind.lanes), plan, rest, rest_sums))
        self.release(again)
        self.release(values)

    def exact(self, piece: Piece, shape: Shape) -> Block:
        """The index, the index of the digits where that pays, the digits; of a block or a part of one."""
        (scale,) = piece.scales
        assert isinstance(scale, ExactScale)
        listed = codec.list_values(self.stream.raw(piece.start, piece.stop), workspace=self.workspace)
        union = yield from self._find_union(listed.index, listed.size, shape)
        self.unions[piece.start] = union.size
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
        lanes = lanes_of(segment, plan.lanes).copy()
        self.release(segment)
        write = partial(self._compose, lanes, plan, union, scale)
        self.results.append(Result(piece.start, piece.stop, self.stream.dtype, write))

    def empty(self, piece: Piece) -> None:
        """Nothing needs to be sent for zeros."""
        zeros = Result(piece.start, piece.stop, self.stream.dtype, lambda out: out.fill(0), is_empty=True)
        self.results.append(zeros)

    def nonfinite(self, piece: Piece, marks: Marks) -> Block:
        """What is NaN or infinite on some rank: two indexes behind each other, of what is +inf or NaN and of
        what is -inf or NaN, since both together are NaN. After the piece's values."""
        index = np.zeros(codec.index_lanes(2 * piece.size), np.uint32)
        for coordinates, offset in ((marks.up, 0), (marks.down, piece.size)):
            inside = coordinates[(coordinates >= piece.start) & (coordinates < piece.stop)]
            bits = inside - piece.start + offset
            np.bitwise_or.at(index, bits // 32, (1 << bits % 32).astype(np.uint32))
        union = yield from self._find_union(index, 2 * piece.size, codec.SHAPES[0])
        up = union[union < piece.size]
        down = union[union >= piece.size] - np.uint32(piece.size)
        if union.size:
            self.special.append(Marks(piece.start + up.astype(np.int64), piece.start + down.astype(np.int64)))

    # -- steps that they share --------------------------------------------------------------------------

    def _quantise(self, piece: Piece) -> QuantisedBlock:
        """The piece's blocks, each at its own scale, as one."""
        index = np.empty(codec.index_lanes(piece.size), np.uint32)
        coordinates, values = [], []
        for number, scale in enumerate(piece.scales):
            assert isinstance(scale, BlockScale)
            offset = number * codec.BLOCK
            end = min(offset + codec.BLOCK, piece.size)
            part = index[codec.index_lanes(offset) : codec.index_lanes(end)]
            x = self.stream.values(piece.start + offset, piece.start + end)
            block = codec.quantise(x, scale, part, self.workspace)
            coordinates.append(block.coordinates + np.uint32(offset) if offset else block.coordinates)
            values.append(block.values)
        if len(values) == 1:
            return QuantisedBlock(piece.size, index, coordinates[0], values[0])
        return QuantisedBlock(piece.size, index, np.concatenate(coordinates), np.concatenate(values))

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

    def _send_values(self, quantised: QuantisedBlock, plan: Plan, piece: Piece) -> Block:
        segment = yield from allocate(self.engine, Op.SUM, plan.lanes)
        codec.encode(quantised, plan, lanes_of(segment, plan.lanes))
        self.queue(segment)
        yield segment
        self._keep(piece, codec.collect(lanes_of(segment, plan.lanes), plan))
        self.release(segment)

    def _keep(self, piece: Piece, sums: Sums) -> None:
        overflow = sums.first_overflow
        if overflow >= 0 and not 0 <= self.overflow < piece.start:
            self.overflow = piece.start + overflow
        if len(piece.scales) > 1:
            sums = sums.ascending()
        for number, scale in enumerate(piece.scales):
            assert isinstance(scale, BlockScale)
            offset = number * codec.BLOCK
            start = piece.start + offset
            stop = min(start + codec.BLOCK, piece.stop)
            write = partial(self._write, sums, scale, offset)
            self.results.append(Result(start, stop, scale.dtype, write))

    def _write(self, sums: Sums, scale: BlockScale, offset: int, out: np.ndarray) -> None:
        codec.write(sums, scale, out, self.op, offset)

    def _compose(
        self, lanes: np.ndarray, plan: Plan, union: np.ndarray, scale: ExactScale, out: np.ndarray
    ) -> None:
        codec.compose(lanes, plan, union, scale, out, self.op, self.workspace)


def lanes_of(segment: Segment, count: int) -> np.ndarray:
    """The first ``count`` lanes of a segment: what its chunks carry besides padding."""
    return segment.lanes.reshape(-1)[:count]
