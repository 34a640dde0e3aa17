"""A real switch and a real controller as processes, and ranks as threads of the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from switchreduce import Communicator
from switchreduce.p4.builds import constants
from switchreduce.sim.processes import Process

START_TIMEOUT = 120.0


@dataclass(frozen=True)
class Cluster:
    controller: str
    data: tuple[str, int]
    p4runtime: str
    controller_process: Process
    switch_process: Process


@contextmanager
def running_cluster(
    build: str = "wide256", loss: float = 0.0, seed: int = 0, switch_options: Sequence[str] = ()
) -> Iterator[Cluster]:
    with Process(
        "switch", "switch", "--no-p4", "--cpu-port", str(constants.CPU_PORT),
        "--grpc-server-addr", "127.0.0.1:0",
        "--udp", f"127.0.0.1:0@127.0.0.1:{constants.AGGREGATION_PORT}",
        "--loss", str(loss), "--seed", str(seed), *switch_options,
    ) as switch:  # fmt: skip
        p4runtime, data = switch.wait_for(r"P4Runtime on (\S+), data on udp (\S+)", START_TIMEOUT).groups()
        with Process(
            "controller", "controller", "--listen", "127.0.0.1:0", "--switch", p4runtime,
            "--data-address", data, "--build", build,
        ) as controller:  # fmt: skip
            address = controller.wait_for(r"workers join at (\S+?),? ", START_TIMEOUT).group(1)
            host, port = data.rsplit(":", 1)
            yield Cluster(address, (host, int(port)), p4runtime, controller, switch)


def run_ranks(
    cluster: Cluster,
    job: str,
    world_size: int,
    work: Callable[[Communicator, int], Any],
    timeout: float = 20.0,
    ranks: list[int] | None = None,
) -> list[Any]:
    """Run `work(communicator, rank)` on every rank; returns each one's result or the error it raised."""
    results: list[Any] = [None] * world_size

    def rank_main(rank: int) -> None:
        try:
            with Communicator.connect(
                cluster.controller, job=job, rank=rank, world_size=world_size, timeout=timeout
            ) as communicator:
                results[rank] = work(communicator, rank)
        except BaseException as error:
            results[rank] = error

    threads = [
        threading.Thread(target=rank_main, args=(rank,), daemon=True) for rank in ranks or range(world_size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout + 40)
        assert not thread.is_alive(), "a rank hangs"
    return results


def raise_errors(results: list[Any]) -> list[Any]:
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
