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

# Lanes of the chunk: the fingerprint's two words, their complements, 1 if this rank refuses, its votes, 1 if
# it has values that are not finite.
FINGERPRINT = slice(0, 2)
COMPLEMENT = slice(2, 4)
REFUSAL = 4
WAY = 5
NONZEROS = 6
NONFINITE = 7
FIRST_KEY = 8

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
    nonfinite: bool  # some rank has NaN or infinity


@dataclass(frozen=True)
class Offer:
    """What a rank says in the first chunk of a call."""

    keys: np.ndarray  # uint32, of its stream's blocks
    way: Way
    nonzeros: int = 0
    nonfinite: bool = False


def propose(engine: SlotEngine, spec: CallSpec, offer: Offer, refusal: bool = False) -> Segment:
    """Queue the first chunk of a call; `settle` takes the answer."""
    head = _allocate(engine, 1)
    lanes = head.lanes.reshape(-1)
    lanes[FINGERPRINT] = spec.fingerprint()
    lanes[COMPLEMENT] = ~lanes[FINGERPRINT]
    lanes[REFUSAL] = refusal
    lanes[WAY] = offer.way.number
    lanes[NONZEROS] = offer.nonzeros
    lanes[NONFINITE] = offer.nonfinite
    room = lanes.size - FIRST_KEY
    lanes[FIRST_KEY : FIRST_KEY + min(offer.keys.size, room)] = offer.keys[:room]
    engine.queue(head)
    return head


def settle(engine: SlotEngine, head: Segment, keys: np.ndarray) -> Generator[Segment | None, None, Agreed]:
    """Wait for the answer to `propose` and return what the ranks agreed on.

    Raises Disagreement or Refused. Keys beyond the first chunk wait until the ranks agree: only then do all
    send as many.
    """
    lanes = head.lanes.reshape(-1)
    room = lanes.size - FIRST_KEY
    yield head
    agreed = bool((lanes[FINGERPRINT] == ~lanes[COMPLEMENT]).all())
    refused = bool(lanes[REFUSAL])
    way, nonzeros, nonfinite = int(lanes[WAY]), int(lanes[NONZEROS]), bool(lanes[NONFINITE])
    combined = lanes[FIRST_KEY : FIRST_KEY + keys.size].copy()
    engine.release(head)
    if refused:
        raise Refused
    if not agreed:
        raise Disagreement
    if keys.size > room:
        rest = _allocate(engine, chunks_for(keys.size - room, engine.lanes))
        lanes = rest.lanes.reshape(-1)
        lanes[: keys.size - room] = keys[room:]
        engine.queue(rest)
        yield rest
        combined = np.concatenate([combined, lanes[: keys.size - room]])
        engine.release(rest)
    return Agreed(combined, Way.from_number(way), nonzeros, nonfinite)


def refuse(engine: SlotEngine, spec: CallSpec) -> Steps:
    """Take part in a call only to say that this rank cannot make it. Raises Refused or Disagreement."""
    nothing = Offer(np.zeros(0, np.uint32), Way("packed"))
    yield from settle(engine, propose(engine, spec, nothing, refusal=True), nothing.keys)


def _allocate(engine: SlotEngine, chunks: int) -> Segment:
    segment = engine.allocate(Op.MAX, chunks)
    assert segment is not None, "a call's keys come before its values, into an arena that holds them all"
    return segment
