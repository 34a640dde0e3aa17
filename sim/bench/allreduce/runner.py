"""Run a plan: rank processes on a fabric, from their arrays to what they found."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from switchreduce.errors import SwitchReduceError
from switchreduce.sim.bench.allreduce.fabric import Fabric
from switchreduce.sim.bench.allreduce.plan import (
    GLOO,
    OTHERS_FAILED,
    Case,
    Contender,
    Plan,
    Tallies,
    Tally,
    read_tallies,
    turn_line,
)
from switchreduce.sim.processes import Process
from switchreduce.sim.ranks import save_inputs

RANK = "switchreduce.sim.bench.allreduce.rank"
MEMORY = "switchreduce.sim.bench.allreduce.memory"
START_TIMEOUT = 180.0  # s: many processes import torch at once, and numba loads what it compiled
TURN_TIMEOUT = 180.0  # s for one call of each contender
END_TIMEOUT = 30.0  # s
LOOK_INTERVAL = 1.0  # s between looks at whether all ranks still run
FAILURE_PATIENCE = 3.0  # s for the rank that failed first to end, after others have noticed
WARM_UP_TURNS = 3  # in which `auto` learns what the network and the arrays are like, and windows open

Found = dict[str, dict[str, list[Tally]]]
"""By case and contender, the tallies of its ranks in their order."""


def gloo_is_missing() -> str:
    """Why Gloo cannot be measured here; empty if it can."""
    if importlib.util.find_spec("torch") is None:
        return "Gloo: there is no torch; pip install 'switchreduce[torch]' (here: pip install -e '.[torch]')"
    return ""


def save_case(name: str, arrays: Sequence[np.ndarray], contenders: Sequence[Contender], folder: Path) -> Case:
    """The case, with the ranks' arrays in a folder of their own under ``folder``."""
    place = Path(tempfile.mkdtemp(dir=folder))
    save_inputs(list(arrays), place)
    return Case(name, str(place), tuple(contenders))


def run_cases(fabric: Fabric, cases: Sequence[Case], repetitions: int, say: Callable[[str], None]) -> Found:
    """Raises SwitchReduceError if a rank fails, stalls or gets another sum than the others."""
    uses_gloo = any(each.codec == GLOO for case in cases for each in case.contenders)
    with tempfile.TemporaryDirectory(prefix="switchreduce-") as name:
        folder = Path(name)
        store = str(folder / "gloo") if uses_gloo else ""
        plan = Plan(fabric.controller, len(fabric.places), store, tuple(cases), WARM_UP_TURNS, repetitions)
        path = folder / "plan.json"
        plan.write(path)
        with running_ranks(fabric, RANK, path) as ranks:
            follow(ranks, plan, say)
            by_rank = [read_tallies(line) for line in last_lines(ranks)]
    return _gather(plan, by_rank)


@contextmanager
def running_ranks(fabric: Fabric, module: str, path: Path) -> Iterator[list[Process]]:
    """A process a rank, which runs `python -m module path rank`; they end with the block."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                Process(
                    f"rank {rank}", "-m", module, str(path), str(rank),
                    program=(*place, "env", f"GLOO_SOCKET_IFNAME={interface}", sys.executable),
                )
            )
            for rank, (place, interface) in enumerate(zip(fabric.places, fabric.interfaces, strict=True))
        ]  # fmt: skip


def follow(
    ranks: Sequence[Process], plan: Plan, say: Callable[[str], None], last_turn: int | None = None
) -> None:
    """Wait for each repetition in its turn, up to ``last_turn``, so that a rank that hangs is noticed.

    Raises SwitchReduceError.
    """
    timeout = START_TIMEOUT
    for case in plan.cases:
        for turn in range(1 - plan.warm_up_turns, (last_turn or plan.repetitions) + 1):
            line = turn_line(case, turn, plan)
            _wait_for(f"(?m)^{line}$", ranks, timeout)
            timeout = TURN_TIMEOUT
            if turn > 0:
                say(line)


def _wait_for(pattern: str, ranks: Sequence[Process], timeout: float) -> None:
    """Until rank 0 says it. Raises SwitchReduceError once a rank has ended or ``timeout`` s have passed."""
    end = time.monotonic() + timeout
    while True:
        try:
            ranks[0].wait_for(pattern, min(LOOK_INTERVAL, max(0.0, end - time.monotonic())))
            return
        except SwitchReduceError as error:
            if time.monotonic() >= end or not all(rank.running for rank in ranks):
                raise _explain(ranks, error) from None


def last_lines(ranks: Sequence[Process]) -> list[str]:
    """What each rank said last, once all have ended. Raises SwitchReduceError if one failed."""
    for rank in ranks:
        try:
            status = rank.wait(TURN_TIMEOUT)
        except SwitchReduceError as error:
            raise _explain(ranks, error) from None
        if status:
            raise _explain(ranks, SwitchReduceError(f"{rank.name} failed: {rank.last_line}"))
    return [rank.last_line for rank in ranks]


def _explain(ranks: Sequence[Process], error: SwitchReduceError) -> SwitchReduceError:
    """The error of a rank that failed by itself, rather than of one that missed it."""
    end = time.monotonic() + FAILURE_PATIENCE
    while time.monotonic() < end:
        for rank in ranks:
            if not rank.running and rank.wait(END_TIMEOUT) not in (0, OTHERS_FAILED):
                return SwitchReduceError(f"{rank.name} failed: {rank.last_line or 'no word'}")
        time.sleep(LOOK_INTERVAL / 10)
    return error


def _gather(plan: Plan, by_rank: Sequence[Tallies]) -> Found:
    found: Found = {}
    for case in plan.cases:
        found[case.name] = {
            each.name: [by_rank[rank][case.name][each.name] for rank in range(each.world_size)]
            for each in case.contenders
        }
        for world_size in {each.world_size for each in case.contenders}:
            ours = [each for each in case.contenders if each.world_size == world_size and each.codec != GLOO]
            digests = {tally.digest for each in ours for tally in found[case.name][each.name]}
            if len(digests) > 1:
                raise SwitchReduceError(f"{case.name}: the ranks' or the codecs' sums differ")
    return found


def peak_memory(fabric: Fabric, case: Case, folder: Path) -> int:
    """Bytes that the rank which took most held at its peak, beyond those before its array was there."""
    path = folder / "memory.json"
    Plan(fabric.controller, len(fabric.places), "", (case,), 0, 1).write(path)
    with running_ranks(fabric, MEMORY, path) as ranks:
        return max(map(int, last_lines(ranks)))
