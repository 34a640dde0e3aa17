"""Rank processes that live through many tests, since each takes seconds to load torch and the kernels."""

from __future__ import annotations

import itertools
import multiprocessing
import socket
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

TIMEOUT = 90.0  # seconds for one scenario

_names = (f"torch{i}" for i in itertools.count())


@dataclass(frozen=True)
class Place:
    """Where a scenario runs: it may join `job` at `controller`, and has a Gloo group of the same ranks."""

    rank: int
    world_size: int
    controller: str
    job: str


class Ranks:
    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        spawn = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self.processes = []
        for rank in range(world_size):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=serve, args=(theirs, rank, world_size, port), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)

    def run(self, controller: str, scenario: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Every rank's `scenario(place, *arguments)` or what that raised; None of a rank that died."""
        job = next(_names)
        for rank, pipe in enumerate(self._pipes):
            pipe.send((scenario, Place(rank, self.world_size, controller, job), arguments))
        return [self._receive(rank) for rank in range(self.world_size)]

    def results(self, controller: str, scenario: Callable[..., Any], *arguments: Any) -> list[Any]:
        """The same, where every rank must return."""
        results = self.run(controller, scenario, *arguments)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    def _receive(self, rank: int) -> Any:
        assert self._pipes[rank].poll(TIMEOUT), f"rank {rank} hangs"
        try:
            return self._pipes[rank].recv()
        except EOFError:
            return None

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def serve(pipe: Connection, rank: int, world_size: int, port: int) -> None:
    """A rank process: runs scenarios until the pipe is closed."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)
    while True:
        try:
            scenario, place, arguments = pipe.recv()
        except EOFError:
            return
        try:
            result = scenario(place, *arguments)
        except BaseException as error:
            traceback.print_exc()
            result = error
        pipe.send(result)
