"""Timing in turns, so that what else the machine does hits every contender alike."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from switchreduce.sim.bench.rows import Sample

Contender = Callable[[], Sample]
"""One repetition of something measured."""

REPETITIONS = 9


@dataclass(frozen=True)
class Settings:
    """How a part runs. ``quick`` takes the smallest sizes that still run everything: figures mean nothing.
    ``profile`` is where the part `allreduce` draws where its time goes."""

    quick: bool = False
    repetitions: int = REPETITIONS
    profile: Path | None = None

    def say(self, text: str) -> None:
        """Progress, one line on stderr."""
        print(f"bench: {text}", file=sys.stderr, flush=True)


def in_turns(
    contenders: Mapping[str, Contender], repetitions: int, say: Callable[[str], None] | None = None
) -> dict[str, list[Sample]]:
    """Each contender's samples; a, b, c, a, b, c, ... after one round that does not count."""
    for contender in contenders.values():
        contender()
    samples: dict[str, list[Sample]] = {name: [] for name in contenders}
    for turn in range(repetitions):
        if say is not None:
            say(f"repetition {turn + 1} of {repetitions}")
        for name, contender in contenders.items():
            samples[name].append(contender())
    return samples


def cpu_time(work: Callable[[], object], amount: float, times: int = 1) -> Contender:
    """Runs ``work`` ``times`` times; CPU time of this thread, which other processes on the core do not add
    to. ``amount`` is that of one time."""

    def contender() -> Sample:
        start = time.thread_time()
        for _ in range(times):
            work()
        return Sample(amount * times, time.thread_time() - start)

    return contender
