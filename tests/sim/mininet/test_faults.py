"""Faults of every part of a star in the middle of a job: what the ranks get, and whether the next job works.

docs/operation.md ("What happens when something fails") says what each rank may expect and when.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

import pytest

from switchreduce.errors import UsageError
from switchreduce.sim.mininet.library import require_mininet
from switchreduce.sim.mininet.star import BMV2, CONTROLLER, start_controller, start_switch
from switchreduce.sim.mininet.topology import Star, inside, run
from tests.waiting import eventually

WORKERS = 3
BUILD = "wide256"
PATIENCE = 60.0  # s for what takes a moment, on a busy machine
LINK_DOWN = 5.0  # s
TIMEOUT = 30.0  # s: the default of a worker
SHORT_TIMEOUT = 2.0  # s, for a fault that nothing but the time-out ends

# A rank that sums until it is told to stop. Its process stays for the next job, as a start takes a second.
# All ranks stop after the same call, as the request to stop is part of what they sum.
RANK = """
import select, sys
import numpy as np
from switchreduce import Communicator
from switchreduce.errors import SwitchReduceError

controller, rank, world_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
size = 100_000

def sum_until_stopped(job, timeout):
    with Communicator.connect(controller, job=job, rank=rank, world_size=world_size, timeout=timeout) as c:
        stopping, call = False, 0
        while not stopping:
            asked = bool(select.select([sys.stdin], [], [], 0)[0]) and sys.stdin.readline() == "stop\\n"
            x = np.arange(size, dtype=np.int32) * (rank + 1) + call
            x[0] = asked
            c.allreduce(x, codec="dense")
            expected = np.arange(size, dtype=np.int32) * (world_size * (world_size + 1) // 2)
            expected += world_size * call
            if not (x[1:] == expected[1:]).all():
                return "inexact"
            stopping = bool(x[0])
            call += 1
            print(job, "call", call, flush=True)
    return "exact"

for line in iter(sys.stdin.readline, ""):
    if line == "stop\\n":
        continue  # it came when its job was over
    job, timeout = line.split()
    try:
        outcome = sum_until_stopped(job, float(timeout))
    except SwitchReduceError as error:
        outcome = f"{type(error).__name__}: {error}"
    print(job, "ended:", outcome, flush=True)
"""


class Rank:
    """A rank's process and what it has said."""

    def __init__(self, star: Star, rank: int) -> None:
        program = (*inside(star.hosts[rank]), sys.executable, "-c", RANK)
        self.popen = subprocess.Popen(
            [*program, CONTROLLER, str(rank), str(len(star.hosts))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.popen.stdout:
            self.lines.append(line.rstrip())

    def tell(self, line: str) -> None:
        self.popen.stdin.write(line + "\n")
        self.popen.stdin.flush()

    def calls(self, job: str) -> int:
        """Calls of the job that this rank has finished."""
        return sum(line.startswith(f"{job} call ") for line in self.lines)

    def outcome(self, job: str) -> str | None:
        found = [line for line in self.lines if line.startswith(f"{job} ended: ")]
        return found[0].removeprefix(f"{job} ended: ") if found else None

    def stop(self) -> None:
        self.popen.kill()
        self.popen.wait()
        self.popen.stdin.close()


class Site:
    """A star with its switch and controller, each of which can be made to fail and started again."""

    def __init__(self, target: str, running: ExitStack) -> None:
        self._target = target
        self._running = running
        self._names = (f"job{number}" for number in count())
        self.star = running.enter_context(Star(WORKERS))
        self.start_switch()
        self.start_controller()
        self.ranks = [self.start_rank(rank) for rank in range(WORKERS)]

    def start_switch(self) -> None:
        self.switch = self._running.enter_context(start_switch(self._target, self.star))

    def start_controller(self) -> None:
        self.controller = self._running.enter_context(start_controller(self.star, self.switch, BUILD))

    def start_rank(self, rank: int) -> Rank:
        started = Rank(self.star, rank)
        self._running.callback(started.stop)
        return started

    def set_link(self, rank: int, end: str, state: str) -> None:
        """Take a rank's link "down" or "up", at the "switch" or the "host"."""
        host, switch = self.star.links[rank]
        interface = {"host": host, "switch": switch}[end]
        run(interface.node, "ip", "link", "set", interface.name, state)

    def start_job(self, timeout: float = TIMEOUT) -> str:
        """The name of a job of all ranks that is well under way."""
        job = next(self._names)
        for rank in self.ranks:
            rank.tell(f"{job} {timeout}")
        self.wait_for_calls(job, 2)
        return job

    def wait_for_calls(self, job: str, more: int) -> None:
        """Until every rank has finished so many more."""
        wanted = [rank.calls(job) + more for rank in self.ranks]

        def reached() -> bool:
            over = {rank.outcome(job) for rank in self.ranks} - {None}
            assert not over, over
            return all(rank.calls(job) >= least for rank, least in zip(self.ranks, wanted, strict=True))

        eventually(reached, PATIENCE)

    def outcomes(self, job: str, within: float = PATIENCE) -> list[str]:
        """How the job ended on each rank that lives."""
        there = [rank for rank in self.ranks if rank.popen.poll() is None]
        eventually(lambda: all(rank.outcome(job) for rank in there), within)
        return [rank.outcome(job) for rank in there]

    def finish(self, job: str) -> None:
        """Let the job end, and check that it does so well."""
        for rank in self.ranks:
            rank.tell("stop")
        assert self.outcomes(job) == ["exact"] * WORKERS

    def check_new_job(self) -> None:
        self.finish(self.start_job())


@pytest.fixture(scope="module", params=["bmv2", "embedded"])
def site(request) -> Iterator[Site]:
    try:
        require_mininet()
    except UsageError as error:
        pytest.skip(str(error))
    if request.param == "bmv2" and shutil.which(BMV2) is None:
        pytest.skip(f"there is no {BMV2} on PATH")
    with ExitStack() as running:
        yield Site(request.param, running)


def check_errors(outcomes: list[str], pattern: str) -> None:
    for outcome in outcomes:
        assert re.fullmatch(pattern, outcome), outcome


def test_a_killed_switch(site):
    job = site.start_job()
    site.switch.kill()
    check_errors(site.outcomes(job), r"SwitchError: the switch at \S+ is gone: .+")
    site.start_switch()
    site.controller.wait_for(f"the switch at .* is back and runs {BUILD}", PATIENCE)
    site.check_new_job()


def test_a_killed_controller(site):
    job = site.start_job()
    site.controller.kill()
    check_errors(site.outcomes(job), r"ControllerError: the controller at \S+ is gone: .+")
    site.start_controller()
    site.check_new_job()


def test_a_killed_switch_and_controller(site):
    job = site.start_job()
    site.controller.kill()
    site.switch.kill()
    check_errors(site.outcomes(job), r"(Controller|Switch)Error: .+")
    site.start_switch()
    site.start_controller()
    site.check_new_job()


def test_a_killed_worker(site):
    job = site.start_job()
    site.ranks[1].stop()
    check_errors(site.outcomes(job), rf"RankLostError: rank 1 .*of job '{job}' died: .+")
    site.ranks[1] = site.start_rank(1)
    site.check_new_job()


def test_links_that_are_down_for_a_while(site):
    """One at the switch's end, where the host sees no carrier; one at the host's, which loses its route."""
    job = site.start_job()
    site.set_link(1, "switch", "down")
    site.set_link(2, "host", "down")
    time.sleep(LINK_DOWN)
    site.set_link(1, "switch", "up")
    site.set_link(2, "host", "up")
    site.wait_for_calls(job, 2)
    site.finish(job)
    site.check_new_job()


def test_a_link_that_stays_down(site):
    job = site.start_job(SHORT_TIMEOUT)
    site.set_link(1, "switch", "down")
    check_errors(site.outcomes(job), r"(Switch|RankLost)Error: .+")
    site.set_link(1, "switch", "up")
    site.check_new_job()
