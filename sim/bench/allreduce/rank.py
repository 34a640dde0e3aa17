"""A program of its own: one rank that sums the same arrays with switchreduce and with Gloo, in turns.

python -m switchreduce.sim.bench.allreduce.rank PLAN.json RANK

Before each call all ranks meet, so that none waits for another's copy. Every codec has a job of its own: what
one learns about the network and the arrays does not help the next. Prints a line a repetition and, at the
end, the tallies.
"""

from __future__ import annotations

import hashlib
import resource
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from switchreduce import Communicator
from switchreduce.errors import RankLostError, SwitchReduceError
from switchreduce.sim.bench.allreduce.plan import (
    GLOO,
    OTHERS_FAILED,
    Case,
    Contender,
    Plan,
    Tallies,
    Tally,
    turn_line,
    write_tallies,
)
from switchreduce.worker.communicator import CallReport

TIMEOUT = 120.0  # s without progress: a rank also waits in `meet` while a larger part of the job works

Call = Callable[[np.ndarray], CallReport | None]


class Gloo:
    """torch.distributed's Gloo over the interface that GLOO_SOCKET_IFNAME names; sums in place."""

    def __init__(self, store: str, rank: int, world_size: int) -> None:
        import torch
        import torch.distributed

        torch.set_num_threads(1)
        self._torch: Any = torch
        self._distributed: Any = torch.distributed
        self._distributed.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size,
            timeout=timedelta(seconds=TIMEOUT),
        )  # fmt: skip

    def allreduce(self, array: np.ndarray) -> None:
        self._distributed.all_reduce(self._torch.from_numpy(array))

    def largest(self, value: float) -> float:
        """The largest of the ranks' values."""
        tensor = self._torch.tensor([value])
        self._distributed.all_reduce(tensor, op=self._distributed.ReduceOp.MAX)
        return float(tensor.item())

    def close(self) -> None:
        self._distributed.destroy_process_group()


class Rank:
    """This process' place in the plan."""

    def __init__(self, plan: Plan, rank: int, gloo: Gloo | None) -> None:
        self.plan = plan
        self.rank = rank
        self.gloo = gloo

    def run(self) -> Tallies:
        with self._connect("meet", self.plan.world_size, slots=2) as everyone:
            self._everyone = everyone
            return {case.name: self._run_case(case) for case in self.plan.cases}

    def _run_case(self, case: Case) -> dict[str, Tally]:
        mine = [each for each in case.contenders if self.rank < each.world_size]
        tallies = {each.name: Tally() for each in mine}
        source = np.load(Path(case.folder) / f"in{self.rank}.npy")
        work = np.empty_like(source)
        with ExitStack() as stack:
            calls = {each.name: self._prepare(case, each, stack) for each in mine}
            self._check(case, calls, tallies, source)
            for turn in range(1 - self.plan.warm_up_turns, self.plan.repetitions + 1):
                print(turn_line(case, turn, self.plan), flush=True)
                for each in case.contenders:
                    np.copyto(work, source)
                    self._meet()
                    if each.name in calls:
                        self._measure(calls[each.name], work, tallies[each.name], turn > 0)
            self._meet()  # none leaves a job while another still counts on it
        return tallies

    def _prepare(self, case: Case, contender: Contender, stack: ExitStack) -> Call:
        if contender.codec == GLOO:
            assert self.gloo is not None
            return self.gloo.allreduce
        job = f"{case.name}, {contender.name}"
        communicator = stack.enter_context(self._connect(job, contender.world_size))
        return lambda array: communicator.allreduce(array, codec=contender.codec)

    def _connect(self, job: str, world_size: int, slots: int = 0) -> Communicator:
        return Communicator.connect(
            self.plan.controller, job=job, rank=self.rank, world_size=world_size, slots=slots, timeout=TIMEOUT
        )

    def _meet(self) -> None:
        self._everyone.allreduce(np.zeros(1, np.int32), codec="dense")

    def _measure(self, call: Call, array: np.ndarray, tally: Tally, counted: bool) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF)
        begun = time.monotonic()
        report = call(array)
        ended = time.monotonic()
        after = resource.getrusage(resource.RUSAGE_SELF)
        if not counted:
            return
        tally.begun.append(begun)
        tally.ended.append(ended)
        tally.cpu_seconds += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        tally.waits += after.ru_nvcsw - before.ru_nvcsw
        if report is not None:
            tally.carried_by = report.codec
            tally.bytes_sent += report.bytes_sent
            tally.packets_sent += report.packets_sent
            tally.retransmits += report.retransmits

    def _check(
        self, case: Case, calls: dict[str, Call], tallies: dict[str, Tally], source: np.ndarray
    ) -> None:
        """One call of each contender whose result is looked at: digests for the driver to compare, and the
        distance to Gloo's float32 sum."""
        gloo_sum: np.ndarray | None = None
        allowed = 0.0
        for each in sorted(case.contenders, key=lambda each: each.codec != GLOO):
            self._meet()
            if each.name not in calls:
                continue
            result = source.copy()
            calls[each.name](result)
            if each.codec == GLOO:
                assert self.gloo is not None
                gloo_sum = result
                largest = self.gloo.largest(float(np.abs(source).max(initial=0)))
                allowed = tolerance(largest, each.world_size)
                continue
            tallies[each.name].digest = hashlib.blake2b(result.data).hexdigest()
            if gloo_sum is not None:
                distance = float(np.abs(result - gloo_sum).max(initial=0))
                if distance > allowed:
                    raise SwitchReduceError(
                        f"{each.codec} is {distance:g} from Gloo's sum, and rounding explains {allowed:g}"
                    )


def tolerance(largest: float, world_size: int) -> float:
    """How far two sums of ``world_size`` float32 up to ``largest`` may be apart.

    Gloo rounds ``world_size`` - 1 partial sums, none above world_size * largest, by 2^-24 of it; the
    fixed-point sum is rounded to float32 once, after half a quantum a rank, which is at most world_size *
    largest * 2^-29. (world_size + 1) roundings cover that up to 32 ranks.
    """
    return (world_size + 1) * world_size * largest * 2.0**-24


def main(arguments: list[str]) -> int:
    plan, rank = Plan.read(Path(arguments[0])), int(arguments[1])
    try:
        gloo = Gloo(plan.gloo_store, rank, plan.world_size) if plan.gloo_store else None
        try:
            tallies = Rank(plan, rank, gloo).run()
        finally:
            if gloo is not None:
                gloo.close()
    except (SwitchReduceError, RuntimeError) as error:  # torch raises RuntimeError when a peer is gone
        print(f"error: {' '.join(str(error).split())}", flush=True)
        return OTHERS_FAILED if isinstance(error, (RankLostError, RuntimeError)) else 1
    print(write_tallies(tallies))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
