"""One allreduce as a sequence of steps over the slot protocol.

A call is a generator. It queues segments on the engine and yields the one it needs next (or None: let
packets flow, nothing is needed yet); whoever drives it comes back when that segment is done. All ranks run
the same steps and queue the same segments in the same order, because every choice depends only on what all
ranks know: the call's description and what the switch has already combined.

Steps:
  1. One MAX chunk says whether the ranks make the same call (a fingerprint and its complement both come back
     unchanged only if all sent the same) and whether a rank refuses to; its other lanes carry the magnitude
     keys of the first blocks. More chunks carry the rest.
  2. A block at a time: the index (OR), and, once the union is known, the values (SUM). The index of block
     b + LEAD travels ahead of the values of block b, so the extra round trip hides.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from switchreduce.errors import SumOverflowError
from switchreduce.worker import codec
from switchreduce.worker.codec import BlockScale, Plan, QuantisedBlock, Workspace
from switchreduce.worker.transport.engine import SlotEngine
from switchreduce.worker.transport.session import Op, Segment

OPS = ("sum", "mean")
CODECS = ("sketch", "dense")

LEAD = 2  # blocks whose index travels ahead
TRAIL = 2  # blocks whose values are under way while the next is encoded

# Lanes of the first chunk: the fingerprint's two words, their complements, 1 if this rank refuses.
FINGERPRINT = slice(0, 2)
COMPLEMENT = slice(2, 4)
REFUSAL = 4
FIRST_KEY = 5

Steps = Generator[Segment | None, None, None]


class Disagreement(Exception):
    """The ranks make different calls; every rank sees this in the same chunk."""


class Refused(Exception):
    """At least one rank refuses the call; every rank sees this in the same chunk."""


@dataclass(frozen=True)
class CallSpec:
    """What the ranks must agree on."""

    number: int  # of the call in the job
    dtype: str
    shape: tuple[int, ...]
    op: str
    codec: str

    def __str__(self) -> str:
        return f"{self.op} of {self.dtype} {self.shape} with codec {self.codec} as call {self.number}"

    def fingerprint(self) -> np.ndarray:
        """uint32 (2,)."""
        return np.frombuffer(hashlib.blake2b(str(self).encode(), digest_size=8).digest(), np.uint32)


def arena_rows(lanes: int) -> int:
    """Chunks that the segments of one call hold together at most."""
    index = chunks_for(codec.index_lanes(codec.BLOCK), lanes)
    values = chunks_for(2 * codec.BLOCK, lanes)  # two limbs
    return 2 + (LEAD + 2) * index + (TRAIL + 2) * values


def chunks_for(lanes: int, lanes_a_chunk: int) -> int:
    return -(-lanes // lanes_a_chunk)


def refuse(engine: SlotEngine, spec: CallSpec) -> Steps:
    """Take part in a call only to say that this rank cannot make it. Raises Refused or Disagreement."""
    yield from _agree(engine, spec, np.zeros(0, np.uint32), refusal=True)


def allreduce(
    engine: SlotEngine,
    spec: CallSpec,
    world_size: int,
    keys: np.ndarray,
    flat: np.ndarray,
    out: np.ndarray,
    workspace: Workspace,
) -> Steps:
    """Write the sum or mean over ranks of `flat` into `out`; both 1-D of the same length and dtype.

    `keys` are the magnitude keys of `flat`'s blocks. Raises Disagreement, Refused or, once every block has
    been through the switch, SumOverflowError; the same on every rank.
    """
    keys = yield from _agree(engine, spec, keys, refusal=False)
    blocks = _Blocks(engine, spec, world_size, keys, flat, out, workspace)
    yield from blocks.run()
    if blocks.overflow >= 0:
        raise SumOverflowError(
            f"the sum at flat index {blocks.overflow} does not fit {spec.dtype}; no array was changed"
        )


def _agree(
    engine: SlotEngine, spec: CallSpec, keys: np.ndarray, refusal: bool
) -> Generator[Segment | None, None, np.ndarray]:
    """Check that all ranks make the call; returns the MAX of `keys` over ranks.

    Keys beyond the first chunk wait until the ranks agree, so that a call that fails here has used one
    chunk on every rank, whatever it looked like there, and the next call finds all ranks in step.
    """
    head = _allocate(engine, Op.MAX, 1)
    lanes = head.lanes.reshape(-1)
    room = lanes.size - FIRST_KEY
    lanes[FINGERPRINT] = spec.fingerprint()
    lanes[COMPLEMENT] = ~lanes[FINGERPRINT]
    lanes[REFUSAL] = refusal
    lanes[FIRST_KEY : FIRST_KEY + min(keys.size, room)] = keys[:room]
    engine.queue(head)
    yield head
    agreed = bool((lanes[FINGERPRINT] == ~lanes[COMPLEMENT]).all())
    refused = bool(lanes[REFUSAL])
    combined = lanes[FIRST_KEY : FIRST_KEY + keys.size].copy()
    engine.release(head)
    if refused:
        raise Refused
    if not agreed:
        raise Disagreement
    if keys.size <= room:
        return combined
    rest = _allocate(engine, Op.MAX, chunks_for(keys.size - room, engine.lanes))
    lanes = rest.lanes.reshape(-1)
    lanes[: keys.size - room] = keys[room:]
    engine.queue(rest)
    yield rest
    combined = np.concatenate([combined, lanes[: keys.size - room]])
    engine.release(rest)
    return combined


def _allocate(engine: SlotEngine, op: Op, chunks: int) -> Segment:
    segment = engine.allocate(op, chunks)
    if segment is None:
        raise AssertionError("arena_rows() is too small for what a call holds at once")
    return segment


@dataclass
class _Indexed:
    """A block whose index is under way."""

    block: int
    scale: BlockScale
    quantised: QuantisedBlock
    segment: Segment


@dataclass
class _Summed:
    """A block whose values are under way."""

    block: int
    scale: BlockScale
    plan: Plan
    segment: Segment


class _Blocks:
    """The blocks of one call on their way through the switch."""

    def __init__(
        self,
        engine: SlotEngine,
        spec: CallSpec,
        world_size: int,
        keys: np.ndarray,
        flat: np.ndarray,
        out: np.ndarray,
        workspace: Workspace,
    ) -> None:
        self.overflow = -1  # flat index of the first sum that does not fit
        self._engine = engine
        self._spec = spec
        self._flat = flat
        self._out = out
        self._workspace = workspace
        self._scales = [BlockScale.from_key(flat.dtype, int(key), world_size) for key in keys]
        self._summing: deque[_Summed] = deque()

    def run(self) -> Steps:
        for block, scale in enumerate(self._scales):
            if scale.is_empty:
                self._part(self._out, block)[...] = 0
        if self._spec.codec == "dense":
            yield from self._send_dense()
        else:
            yield from self._send_sketches()
        while self._summing:
            yield from self._finish_oldest()

    def _live(self) -> Iterator[int]:
        return (block for block, scale in enumerate(self._scales) if not scale.is_empty)

    def _part(self, array: np.ndarray, block: int) -> np.ndarray:
        return array[block * codec.BLOCK : (block + 1) * codec.BLOCK]

    def _send_dense(self) -> Steps:
        for block in self._live():
            scale = self._scales[block]
            values = self._part(self._flat, block)
            plan = codec.plan_dense(values.size, scale.limbs)
            segment = self._allocate_values(plan)
            codec.encode_values(values, scale, segment.lanes.reshape(-1)[: plan.lanes])
            yield from self._send_values(_Summed(block, scale, plan, segment))

    def _send_sketches(self) -> Steps:
        live = self._live()
        indexing: deque[_Indexed] = deque()
        while True:
            for block in islice(live, LEAD + 1 - len(indexing)):
                indexing.append(self._send_index(block))
            if not indexing:
                return
            item = indexing.popleft()
            yield item.segment
            size = item.quantised.size
            union = item.segment.lanes.reshape(-1)[: codec.index_lanes(size)]
            plan = codec.plan_union(union, size, item.scale.limbs, self._workspace)
            self._engine.release(item.segment)
            segment = self._allocate_values(plan)
            codec.encode(item.quantised, plan, segment.lanes.reshape(-1)[: plan.lanes])
            yield from self._send_values(_Summed(item.block, item.scale, plan, segment))

    def _send_index(self, block: int) -> _Indexed:
        values = self._part(self._flat, block)
        scale = self._scales[block]
        lanes = codec.index_lanes(values.size)
        segment = _allocate(self._engine, Op.OR, chunks_for(lanes, self._engine.lanes))
        quantised = codec.quantise(values, scale)
        segment.lanes.reshape(-1)[:lanes] = quantised.index
        self._engine.queue(segment)
        return _Indexed(block, scale, quantised, segment)

    def _allocate_values(self, plan: Plan) -> Segment:
        return _allocate(self._engine, Op.SUM, chunks_for(plan.lanes, self._engine.lanes))

    def _send_values(self, item: _Summed) -> Steps:
        self._engine.queue(item.segment)
        self._summing.append(item)
        yield None
        while len(self._summing) > TRAIL:
            yield from self._finish_oldest()

    def _finish_oldest(self) -> Steps:
        item = self._summing.popleft()
        yield item.segment
        lanes = item.segment.lanes.reshape(-1)[: item.plan.lanes]
        out = self._part(self._out, item.block)
        overflow = codec.decode(lanes, item.plan, item.scale, out, self._spec.op, self._workspace)  # type: ignore[arg-type]
        self._engine.release(item.segment)
        if overflow >= 0 and self.overflow < 0:
            self.overflow = item.block * codec.BLOCK + overflow
