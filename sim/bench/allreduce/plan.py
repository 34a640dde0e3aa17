"""What the ranks of a measurement do, and what each of them found; as JSON between the processes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

GLOO = "gloo"
OTHERS_FAILED = 3  # exit status of a rank that ends because another did


@dataclass(frozen=True)
class Contender:
    """One way to sum the case's arrays over ranks 0 to ``world_size`` - 1."""

    codec: str  # of switchreduce, or GLOO
    world_size: int

    @property
    def name(self) -> str:
        return f"{self.codec} {self.world_size}"


@dataclass(frozen=True)
class Case:
    """Arrays, and the contenders that sum them in turns.

    Rank r's array is in<r>.npy in ``folder``; ``name`` is unique in the run.
    """

    name: str
    folder: str
    contenders: tuple[Contender, ...]


@dataclass(frozen=True)
class Plan:
    """All that a rank needs to know, but its number and its network interface."""

    controller: str
    world_size: int  # rank processes
    gloo_store: str  # file through which Gloo's ranks find each other; empty: no Gloo
    cases: tuple[Case, ...]
    warm_up_turns: int
    repetitions: int

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Plan:
        facts = json.loads(path.read_text())
        facts["cases"] = tuple(
            Case(case["name"], case["folder"], tuple(Contender(**each) for each in case["contenders"]))
            for case in facts["cases"]
        )
        return cls(**facts)


def turn_line(case: Case, turn: int, plan: Plan) -> str:
    """What a rank prints when it begins a turn; those up to 0 do not count."""
    return f"{case.name}: {turn} of {plan.repetitions}"


@dataclass
class Tally:
    """What one rank saw of a contender. Times are CLOCK_MONOTONIC's, which all processes share."""

    begun: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    carried_by: str = ""  # the codec that the last call took
    # of all counted calls:
    cpu_seconds: float = 0.0  # of all threads of the rank's process
    waits: int = 0  # times that the process gave up its core for something to happen
    bytes_sent: int = 0
    packets_sent: int = 0
    retransmits: int = 0
    digest: str = ""  # of the result's bits


Tallies = dict[str, dict[str, Tally]]
"""By case and contender, by their names."""


def write_tallies(tallies: Tallies) -> str:
    """One line of JSON."""
    return json.dumps(
        {case: {name: asdict(each) for name, each in by.items()} for case, by in tallies.items()}
    )


def read_tallies(text: str) -> Tallies:
    facts = json.loads(text)
    return {case: {name: Tally(**each) for name, each in by.items()} for case, by in facts.items()}


def seconds(tallies: Sequence[Tally]) -> list[float]:
    """By repetition, from the first rank's begin to the last rank's end."""
    begun = zip(*(each.begun for each in tallies), strict=True)
    ended = zip(*(each.ended for each in tallies), strict=True)
    return [max(last) - min(first) for first, last in zip(begun, ended, strict=True)]
