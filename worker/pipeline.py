"""Blocks on their way through the switch, several at a time.

A block is a generator that queues a segment, yields it, and is resumed once the segment is done; so each of
its round trips is one yield. All ranks resume the same blocks in the same order, because the order depends on
nothing but counts, hence they queue the same segments in the same order.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from itertools import count

from switchreduce.worker.transport.engine import Op, Segment, SlotEngine

LAG = 2  # blocks that take a step between two steps of one, so that its round trip hides
MAX_ACTIVE = 24  # blocks; enough for LAG between the steps of all, and fewer than an engine's segments

Steps = Generator[Segment | None, None, None]  # yields what must be done next; None: let packets flow
Block = Generator[Segment | None, None, None]  # yields what it waits for; None: room for a segment


@dataclass
class _Active:
    block: Block
    waits_for: Segment | None
    turn: int  # when it queued that


def run_blocks(blocks: Iterable[Block], begun: Iterable[tuple[Block, Segment]] = ()) -> Steps:
    """Resume the blocks, oldest first, each LAG turns after its last step; every turn begins one more.

    ``begun`` are blocks that have taken their first step, with what they wait for.
    """
    waiting = iter(blocks)
    more = True
    active = [_Active(block, segment, -LAG) for block, segment in begun]
    for turn in count():
        for item in list(active):
            if more and turn - item.turn < LAG:
                continue
            if item.waits_for is not None:
                yield item.waits_for
            if _resume(item, turn):
                yield None
            else:
                active.remove(item)
        if more and len(active) < MAX_ACTIVE:
            block = next(waiting, None)
            if block is None:
                more = False
            else:
                item = _Active(block, None, turn)
                if _resume(item, turn):
                    active.append(item)
                    yield None
        if not more and not active:
            return


def _resume(item: _Active, turn: int) -> bool:
    try:
        item.waits_for = next(item.block)
    except StopIteration:
        return False
    item.turn = turn
    return True


def allocate(engine: SlotEngine, op: Op, lanes: int) -> Generator[None, None, Segment]:
    """A segment for ``lanes`` lanes, as soon as the blocks before have left room for it.

    Which blocks hold room depends on their order alone, so it comes at the same step on every rank.
    """
    chunks = chunks_for(lanes, engine.lanes)
    while (segment := engine.allocate(op, chunks)) is None:
        yield None
    return segment


def chunks_for(lanes: int, lanes_a_chunk: int) -> int:
    """Chunks that hold ``lanes`` lanes."""
    return -(-lanes // lanes_a_chunk)
