"""The data of job admission: members, jobs, and what the state machine in `jobs` wants done."""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass, field

from switchreduce import defaults
from switchreduce.controller import coordinator_pb2 as pb
from switchreduce.controller import entries
from switchreduce.controller.entries import Location, Stages
from switchreduce.controller.slots import Lease


class State(enum.Enum):
    FORMING = "forming"  # ranks join, and their hellos come through the switch
    ADMITTING = "admitting"  # all are there; their entries are being written
    RUNNING = "running"
    ENDING = "ending"  # over for every rank; entries are being removed, the lease is still held


@dataclass(eq=False)
class Member:
    """A process that asked to join: the receiver of events."""

    rank: int
    ticket: int
    host: str
    pid: int
    heard: float  # when it was invited or last sent a heartbeat
    location: Location | None = None  # from its hello
    invited: bool = False
    departed: bool = False  # left in good order
    ended: bool = False  # heard Ended, or cannot hear anything any more

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.host}, pid {self.pid})"


@dataclass
class Call:
    """A failed collective call that ranks report on."""

    texts: dict[int, str] = field(default_factory=dict)
    waiting: list[tuple[float, Hashable]] = field(default_factory=list)  # until when, for what token


@dataclass(eq=False)
class Job:
    """One incarnation of a job."""

    name: str
    generation: int
    world_size: int
    lease: Lease
    join_deadline: float
    state: State = State.FORMING
    members: dict[int, Member] = field(default_factory=dict)
    opened: bool = False  # the switch lets its hellos through
    hello_deadline: float | None = None  # set once all have joined
    admitted: tuple[Location, ...] | None = None  # what the admission entries were made of
    write_failed: bool = False
    calls: dict[int, Call] = field(default_factory=dict)

    @property
    def present(self) -> list[Member]:
        """Who still takes part, by rank."""
        return [m for _, m in sorted(self.members.items()) if not m.departed and not m.ended]

    @property
    def missing(self) -> list[int]:
        """Ranks that have not joined."""
        return [rank for rank in range(self.world_size) if rank not in self.members]


@dataclass(frozen=True)
class Timing:
    """All in seconds; see `switchreduce.defaults`."""

    join_timeout: float = defaults.JOIN_TIMEOUT
    hello_timeout: float = defaults.HELLO_TIMEOUT
    heartbeat_timeout: float = defaults.HEARTBEAT_TIMEOUT
    explain_timeout: float = defaults.EXPLAIN_TIMEOUT

    @property
    def heartbeat_interval(self) -> float:
        """Short enough for several heartbeats to get lost or late."""
        return min(defaults.HEARTBEAT_INTERVAL, self.heartbeat_timeout / 5)


class Step(enum.Enum):
    """Which of a job's writes this is."""

    OPEN = "open"
    ADMIT = "admit"
    CLOSE = "close"


@dataclass(frozen=True)
class Send:
    """Send `event` to `member`. After an Ended its stream closes."""

    member: Member
    event: pb.Event


@dataclass(frozen=True)
class Write:
    """Write `stages` to the switch, one after the other, then report with `written` or `write_failed`.

    Writes happen in the order in which they were asked for. `stages` and `tolerant` are to be read when a
    write's turn comes, as what closes a job depends on how its earlier writes went.
    """

    job: Job
    step: Step

    @property
    def stages(self) -> Stages:
        job = self.job
        if self.step is Step.OPEN:
            return entries.opening(job.lease, job.generation)
        if self.step is Step.ADMIT:
            assert job.admitted is not None
            return entries.admission(job.lease, job.generation, job.admitted)
        opened = job.admitted is None or job.write_failed
        return entries.closing(job.lease, job.generation, job.admitted, opened)

    @property
    def tolerant(self) -> bool:
        """Entries to delete may not be there, since an earlier write failed half-way."""
        return self.step is Step.CLOSE and self.job.write_failed


@dataclass(frozen=True)
class Answer:
    """Answer the Explain call that `token` stands for."""

    token: Hashable
    texts: dict[int, str]


@dataclass(frozen=True)
class Note:
    """Tell the controller's operator."""

    text: str


Effect = Send | Write | Answer | Note
