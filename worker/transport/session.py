"""Data types of the slot protocol: who this rank is, and what it asks the switch to combine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from switchreduce.p4.builds import constants


class Op(IntEnum):
    """How the switch combines lanes."""

    SUM = constants.OP_SUM  # modulo 2^32
    OR = constants.OP_OR
    MAX = constants.OP_MAX  # unsigned


@dataclass(frozen=True)
class Session:
    """A rank's place in one incarnation of a job, as the controller granted it."""

    job: int
    generation: int
    rank: int
    world_size: int
    slots: int


@dataclass(eq=False)
class Segment:
    """A run of chunks that are combined by one op.

    ``lanes`` is uint32 of shape (chunks, lanes per packet) in native byte order: the rank's contribution
    before, the switch's result once ``done``. It is a view into the engine's arena and valid until released.
    """

    op: Op
    lanes: np.ndarray
    row: int  # first row in the arena
    number: int = -1  # index of its count of missing results, while queued
    first_chunk: int = -1
    done: bool = False

    @property
    def chunks(self) -> int:
        return int(self.lanes.shape[0])


@dataclass
class TransportStats:
    """Counts since the engine was made; packets, unless the name says bytes."""

    sent: int = 0
    bytes_sent: int = 0  # UDP payload, retransmissions included
    retransmits: int = 0
    received: int = 0
    results: int = 0  # new ones
    duplicates: int = 0  # results that were here already
    malformed: int = 0  # not a packet of this protocol and build
    foreign: int = 0  # well-formed, but not for this rank, generation or moment
    timeouts: int = 0
    losses: int = 0  # times the window shrank
