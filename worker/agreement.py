"""The first chunk of a call: do all ranks make the same call, and how will they make it?"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from switchreduce.errors import SwitchError
from switchreduce.worker.calls import CallSpec
from switchreduce.worker.codec import FLAT, SHAPES, Shape
from switchreduce.worker.pipeline import Steps, chunks_for
from switchreduce.worker.transport.engine import Op, Segment, SlotEngine

# Lanes of the chunk: the fingerprint's two words, their complements, 1 if this rank refuses, its votes.
FINGERPRINT = slice(0, 2)
COMPLEMENT = slice(2, 4)
REFUSAL = 4
WAY = 5
NONZEROS = 6
FIRST_KEY = 7

_CODECS = ("packed", "sketch", "exact", "dense")  # by number in a vote


class Disagreement(Exception):
    """The ranks make different calls; every rank sees this in the same chunk."""


class Refused(Exception):
    """At least one rank refuses the call; every rank sees this in the same chunk."""


@dataclass(frozen=True)
class Way:
    """How a call is made: the codec, and the shape of the index.

    Ranks may think differently of what is fastest. Each votes, the switch takes the MAX, and all do that: of
    the votes, the dense codec wins and then the index with the fewest levels.
    """

    codec: str
    shape: Shape = FLAT

    @property
    def number(self) -> int:
        return _CODECS.index(self.codec) * len(SHAPES) + SHAPES.index(self.shape)

    @classmethod
    def from_number(cls, number: int) -> Way:
        """Raises SwitchError for a number that no rank votes."""
        if number >= len(_CODECS) * len(SHAPES):
            raise SwitchError("the ranks' votes came back changed: packets were altered; restart the job")
        codec, shape = divmod(number, len(SHAPES))
        return cls(_CODECS[codec], SHAPES[shape])


@dataclass(frozen=True)
class Agreed:
    """What all ranks know after the first chunk: MAX over ranks of their keys and votes."""

    keys: np.ndarray  # uint32
    way: Way
    nonzeros: int  # of the rank that has most, as it estimates them


def refuse(engine: SlotEngine, spec: CallSpec) -> Steps:
    """Take part in a call only to say that this rank cannot make it. Raises Refused or Disagreement."""
    yield from _exchange(engine, spec, np.zeros(0, np.uint32), 0, 0, refusal=True)


def agree(
    engine: SlotEngine, spec: CallSpec, keys: np.ndarray, way: Way, nonzeros: int
) -> Generator[Segment | None, None, Agreed]:
    """Check that all ranks make the call, and combine their keys and votes.

    Raises Disagreement or Refused.
    """
    combined, number, most = yield from _exchange(engine, spec, keys, way.number, nonzeros, refusal=False)
    return Agreed(combined, Way.from_number(number), most)


def _exchange(
    engine: SlotEngine, spec: CallSpec, keys: np.ndarray, way: int, nonzeros: int, refusal: bool
) -> Generator[Segment | None, None, tuple[np.ndarray, int, int]]:
    """Keys beyond the first chunk wait until the ranks agree, so that a call that fails here has used one
    chunk on every rank, whatever it looked like there, and the next call finds all ranks in step."""
    head = _allocate(engine, 1)
    lanes = head.lanes.reshape(-1)
    room = lanes.size - FIRST_KEY
    lanes[FINGERPRINT] = spec.fingerprint()
    lanes[COMPLEMENT] = ~lanes[FINGERPRINT]
    lanes[REFUSAL] = refusal
    lanes[WAY] = way
    lanes[NONZEROS] = nonzeros
    lanes[FIRST_KEY : FIRST_KEY + min(keys.size, room)] = keys[:room]
    engine.queue(head)
    yield head
    agreed = bool((lanes[FINGERPRINT] == ~lanes[COMPLEMENT]).all())
    refused = bool(lanes[REFUSAL])
    way, nonzeros = int(lanes[WAY]), int(lanes[NONZEROS])
    combined = lanes[FIRST_KEY : FIRST_KEY + keys.size].copy()
    engine.release(head)
    if refused:
        raise Refused
    if not agreed:
        raise Disagreement
    if keys.size <= room:
        return combined, way, nonzeros
    rest = _allocate(engine, chunks_for(keys.size - room, engine.lanes))
    lanes = rest.lanes.reshape(-1)
    lanes[: keys.size - room] = keys[room:]
    engine.queue(rest)
    yield rest
    combined = np.concatenate([combined, lanes[: keys.size - room]])
    engine.release(rest)
    return combined, way, nonzeros


def _allocate(engine: SlotEngine, chunks: int) -> Segment:
    segment = engine.allocate(Op.MAX, chunks)
    assert segment is not None, "a call begins with an empty arena, which holds its keys"
    return segment
