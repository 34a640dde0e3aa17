"""An embedded switch and a controller as processes, and the ranks of a job as threads of this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from switchreduce import Communicator, defaults
from switchreduce.p4.builds import constants
from switchreduce.sim.processes import Process

START_TIMEOUT = 300.0  # s: numba compiles the program once on a machine

Result = TypeVar("Result")


@contextmanager
def running_cluster(build: str) -> Iterator[str]:
    """The address at which workers join. Raises SwitchReduceError."""
    with Process(
        "switch", "switch", "--no-p4", "--cpu-port", str(constants.CPU_PORT),
        "--grpc-server-addr", "127.0.0.1:0",
        "--udp", f"127.0.0.1:0@{defaults.AGGREGATION_ADDRESS}:{constants.AGGREGATION_PORT}",
    ) as switch:  # fmt: skip
        ready = switch.wait_for(r"P4Runtime on (\S+), data on udp (\S+)", START_TIMEOUT)
        p4runtime, data = ready.groups()
        with Process(
            "controller", "controller", "--listen", "127.0.0.1:0", "--switch", p4runtime,
            "--data-address", data, "--build", build,
        ) as controller:  # fmt: skip
            yield controller.wait_for(r"workers join at (\S+?),? ", START_TIMEOUT).group(1)


def run_ranks(
    controller: str, job: str, ranks: int, work: Callable[[Communicator, int], Result], minimise: str = "time"
) -> list[Result]:
    """What `work(communicator, rank)` returns on each rank. Raises the first rank's error."""

    def rank_main(rank: int) -> Result:
        with Communicator.connect(
            controller, job=job, rank=rank, world_size=ranks, minimise=minimise
        ) as communicator:
            return work(communicator, rank)

    with ThreadPoolExecutor(ranks) as threads:
        return [future.result() for future in [threads.submit(rank_main, rank) for rank in range(ranks)]]
