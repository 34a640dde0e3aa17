"""A program of its own: how much memory one rank's calls take.

python -m switchreduce.sim.bench.allreduce.memory PLAN.json RANK

Makes one call with each contender of the plan's only case, and holds nothing but the array that a caller
would. Prints the resident bytes beyond those from before the array was there, at their peak.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np

from switchreduce import Communicator
from switchreduce.errors import SwitchReduceError
from switchreduce.sim.bench.allreduce.plan import Plan


def resident_bytes(which: str) -> int:
    """VmRSS (now) or VmHWM (the peak so far), in bytes; proc(5)."""
    match = re.search(rf"{which}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match.group(1)) * 1024


def measure(plan: Plan, rank: int) -> int:
    [case] = plan.cases
    with Communicator.connect(
        plan.controller, job=case.name, rank=rank, world_size=plan.world_size
    ) as communicator:
        before = resident_bytes("VmRSS")
        array = np.load(Path(case.folder) / f"in{rank}.npy")
        for each in case.contenders:
            communicator.allreduce(array, codec=each.codec)
        return resident_bytes("VmHWM") - before


def main(arguments: list[str]) -> int:
    try:
        peak = measure(Plan.read(Path(arguments[0])), int(arguments[1]))
    except SwitchReduceError as error:
        print(f"error: {error}", flush=True)
        return 1
    print(peak)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
