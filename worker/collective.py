"""One allreduce as a sequence of steps over the slot protocol.

A call is a generator. It queues segments on the engine and yields the one it needs next (or None: let
packets flow, nothing is needed yet); whoever drives it comes back when that segment is done. All ranks run
the same steps and queue the same segments in the same order, because every choice depends only on what all
ranks know: the call's description and what the switch has already combined.

Steps:
  1. One MAX chunk says whether the ranks make the same call (a fingerprint and its complement both come back
     unchanged only if all sent the same) and whether a rank refuses to; its other lanes carry the ranks'
     votes (agreement.py) and the magnitude keys of the first blocks. More chunks carry the rest.
  2. A block at a time (blocks.py): the index (OR), in one or more levels, and, once the union is known, the
     values (SUM). Blocks overlap (pipeline.py), so that their round trips hide.

A small call spends its time in round trips. If one like it was made before, its blocks take their first step
together with step 1, at the scales of that call; should the scales turn out otherwise, that was in vain and
the blocks begin again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np

from switchreduce.errors import SumOverflowError
from switchreduce.worker import codec
from switchreduce.worker.agreement import Agreed, Offer, Way, propose, settle
from switchreduce.worker.blocks import Piece, PieceSender
from switchreduce.worker.calls import CallSpec
from switchreduce.worker.codec import BlockScale, ExactScale
from switchreduce.worker.pipeline import Block, Steps, chunks_for, run_blocks
from switchreduce.worker.sparse import SparseStream
from switchreduce.worker.stream import Marks, Stream
from switchreduce.worker.transport.engine import Segment, SlotEngine

# Fewer steps mean fewer waits, and smaller pieces hide them better and need less memory: so many pieces at
# least, where there are enough blocks, and so many blocks a piece at most.
PIECES = 16
BLOCKS_A_PIECE = 4

# Lanes that the segments of one call hold together at most: values of four pieces with two limbs each, as
# many as the pipeline has under way, and the levels of their indexes. What no call uses is never touched.
LARGEST_SEGMENT = 2 * BLOCKS_A_PIECE * codec.BLOCK
ARENA_LANES = 4 * LARGEST_SEGMENT + 24 * codec.index_lanes(BLOCKS_A_PIECE * codec.BLOCK)

FORESEEN_CHUNKS = 64  # that a call sends before it knows the ranks' keys, at most
FORESEEN_CALLS = 1024  # kinds of calls whose outcome is remembered


def arena_rows(lanes: int) -> int:
    """Chunks that the segments of one call hold together at most."""
    return chunks_for(ARENA_LANES, lanes)


@dataclass(frozen=True)
class Outcome:
    """What a call learned that the next one like it can use; the same on all ranks."""

    agreed: Agreed
    pieces: tuple[Piece, ...]
    unions: dict[int, int]  # by start of a piece: coordinates that are not zero on some rank
    codec: str  # that carried the values: the foreseen one, though the ranks' votes may have turned meanwhile

    @property
    def union(self) -> int:
        return sum(self.unions.values())


class Foresight:
    """The outcomes of the latest small calls, by kind.

    Every rank puts and gets the same, so all know the same.
    """

    def __init__(self) -> None:
        self._outcomes: OrderedDict[tuple[object, ...], Outcome] = OrderedDict()

    def get(self, kind: tuple[object, ...]) -> Outcome | None:
        return self._outcomes.get(kind)

    def put(self, kind: tuple[object, ...], outcome: Outcome) -> None:
        if len(outcome.pieces) <= FORESEEN_CHUNKS:
            self._outcomes[kind] = outcome
            self._outcomes.move_to_end(kind)
            while len(self._outcomes) > FORESEEN_CALLS:
                self._outcomes.popitem(last=False)


@dataclass
class Call:
    """One call on its way. ``foreseen``: the outcome of the last call like it, the same on all ranks."""

    engine: SlotEngine
    spec: CallSpec
    world_size: int
    stream: Stream | SparseStream
    sender: PieceSender
    foreseen: Outcome | None = None

    def steps(self, offer: Offer, marks: Marks) -> Generator[Segment | None, None, Outcome]:
        """Bring the sum or mean over ranks into the sender's results.

        ``marks`` are of the values that are not finite, which the stream has as 0. Raises Disagreement,
        Refused or, once every block has been through the switch, SumOverflowError; the same on every rank.
        """
        head = propose(self.engine, self.spec, offer)
        begun = self._begin_foreseen()
        agreed = yield from settle(self.engine, head, offer.keys)
        pieces = tuple(self._pieces(agreed))
        for piece in pieces:
            if piece.is_empty:
                self.sender.empty(piece)
        carrier = agreed.way.codec
        if begun and self.foreseen is not None and pieces == self.foreseen.pieces:
            carrier = self.foreseen.agreed.way.codec
            yield from run_blocks((), begun)
        else:
            yield from self._discard(begun)
            yield from run_blocks(self._blocks(pieces, agreed.way))
        if agreed.nonfinite:
            yield from run_blocks(self.sender.nonfinite(piece, marks) for piece in pieces)
        if self.sender.overflow >= 0:
            number, index = self.stream.locate(self.sender.overflow)
            which = f" of array {number}" if len(self.spec.shapes) > 1 else ""
            raise SumOverflowError(
                f"the sum at index {index}{which} does not fit {self.spec.dtype}; no array was changed"
            )
        return Outcome(agreed, pieces, dict(self.sender.unions), carrier)

    def _pieces(self, agreed: Agreed) -> Iterator[Piece]:
        if agreed.way.codec == "exact":
            yield from self._exact_pieces(agreed.keys)
            return
        scales = [BlockScale.from_key(self.stream.wide, int(key), self.world_size) for key in agreed.keys]
        blocks = 1
        if agreed.way.codec in ("packed", "sketch"):
            blocks = min(max(len(scales) // PIECES, 1), BLOCKS_A_PIECE)
        for first in range(0, len(scales), blocks):
            start = first * codec.BLOCK
            stop = min(start + blocks * codec.BLOCK, self.stream.size)
            yield Piece(start, stop, tuple(scales[first : first + blocks]))

    def _exact_pieces(self, keys: np.ndarray) -> Iterator[Piece]:
        """Blocks, or where these have many limbs, parts of them."""
        for number, part in enumerate(keys.reshape(-1, codec.EXACT_KEYS)):
            scale = ExactScale.from_keys(self.stream.dtype, part, self.world_size)
            start = number * codec.BLOCK
            stop = min(start + codec.BLOCK, self.stream.size)
            step = codec.BLOCK
            while scale.limbs * step > LARGEST_SEGMENT:
                step //= 2
            for first in range(start, stop, step):
                yield Piece(first, min(first + step, stop), (scale,))

    def _blocks(self, pieces: tuple[Piece, ...], way: Way) -> Iterator[Block]:
        for piece in pieces:
            if not piece.is_empty:
                yield self._block(piece, way)

    def _block(self, piece: Piece, way: Way) -> Block:
        if way.codec == "dense":
            return self.sender.dense(piece)
        send = {"packed": self.sender.packed, "sketch": self.sender.sketch, "exact": self.sender.exact}
        return send[way.codec](piece, way.shape)

    # -- before the keys are known --------------------------------------------------------------------

    def _begin_foreseen(self) -> list[tuple[Block, Segment]]:
        """Blocks that have taken their first step at the foreseen scales, and what each waits for; none where
        that is not worth it."""
        if self.foreseen is None or self.foreseen.agreed.way.codec == "exact":
            return []
        # fewer than a lap of the slots, so that the ranks find into step if they must abandon these chunks
        if self._foreseen_chunks() > min(FORESEEN_CHUNKS, self.engine.session.slots - 1):
            return []
        begun = []
        for piece in self.foreseen.pieces:
            if piece.is_empty:
                continue
            if self._goes_at_once(piece):
                block = self.sender.sketch_at_once(piece, self.foreseen.unions[piece.start])
            else:
                block = self._block(piece, self.foreseen.agreed.way)
            segment = next(block)
            assert segment is not None, "the arena has room for the first steps of a small call"
            begun.append((block, segment))
        return begun

    def _foreseen_chunks(self) -> int:
        assert self.foreseen is not None
        chunks = 0
        for piece in self.foreseen.pieces:
            if piece.is_empty:
                continue
            if self.foreseen.agreed.way.codec == "dense":
                chunks += chunks_for(piece.size * piece.limbs, self.engine.lanes)
                continue
            chunks += chunks_for(codec.index_lanes(piece.size), self.engine.lanes)
            if self._goes_at_once(piece):
                blind = codec.plan_blind(self.foreseen.unions[piece.start], piece.size)
                chunks += chunks_for(blind.lanes, self.engine.lanes)
        return chunks

    def _goes_at_once(self, piece: Piece) -> bool:
        assert self.foreseen is not None
        expected = self.foreseen.unions.get(piece.start)
        if self.foreseen.agreed.way.codec != "sketch" or piece.limbs != 1 or expected is None:
            return False
        return codec.plan_blind(expected, piece.size).buckets < piece.size

    def _discard(self, begun: list[tuple[Block, Segment]]) -> Steps:
        """Let what was sent in vain come back: all ranks sent it, so it does."""
        for segment in list(self.sender.open):
            yield segment
            self.sender.release(segment)
        for block, _ in begun:
            block.close()
