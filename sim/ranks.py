"""Workers as processes: what goes in, how each is started, and what comes out."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from switchreduce.errors import SwitchReduceError, UsageError
from switchreduce.p4.builds import constants
from switchreduce.sim.data import load_rank_arrays, load_recorded_gradients
from switchreduce.sim.processes import Process

RUN_TIMEOUT = 600.0  # s, for all of a worker's calls

Reports = list[dict[str, dict[str, float]]]
"""By rank and codec, the rows of `switchreduce worker allreduce --json`."""


def load_inputs(path: Path | None, workers: int | None) -> list[np.ndarray]:
    """One array per worker."""
    if workers is not None and not 1 <= workers <= constants.MAX_RANKS:
        raise UsageError(f"--workers {workers}: a job has 1 to {constants.MAX_RANKS} ranks")
    if path is not None:
        arrays = load_rank_arrays(path, workers)
        if len(arrays) > constants.MAX_RANKS:
            raise UsageError(f"{path} has {len(arrays)} ranks, and a job up to {constants.MAX_RANKS}")
        return arrays
    recorded = load_recorded_gradients()
    if workers is None or workers == len(recorded):
        return recorded
    # other counts reuse the recorded ranks' gradients in turn, so every rank still has a real one
    return [recorded[rank % len(recorded)] for rank in range(workers)]


def save_inputs(arrays: list[np.ndarray], folder: Path) -> None:
    """Put each rank's array where `worker_arguments` says."""
    for rank, array in enumerate(arrays):
        np.save(folder / f"in{rank}.npy", array)


def worker_arguments(
    rank: int, world_size: int, controller: str, codecs: Sequence[str], op: str, folder: Path
) -> list[str]:
    """Of the `switchreduce` that sums the array saved in `folder`, once with each codec."""
    return [
        "worker", "allreduce", "--controller", controller, "--job", "demo",
        "--rank", str(rank), "--world-size", str(world_size), "--codec", ",".join(codecs), "--op", op,
        "--input", str(folder / f"in{rank}.npy"), "--output", str(folder / f"out{rank}.{{codec}}.npy"),
        "--json",
    ]  # fmt: skip


def collect(
    workers: Sequence[Process], codecs: Sequence[str], folder: Path
) -> tuple[dict[str, list[np.ndarray]], Reports]:
    """Wait for the workers, in rank order; each codec's outputs by rank, and each rank's reports.

    Raises SwitchReduceError with a failed worker's last line.
    """
    reports = []
    for worker in workers:
        if worker.wait(RUN_TIMEOUT):
            raise SwitchReduceError(f"{worker.name} failed: {worker.last_line}")
        reports.append({row["codec"]: row for row in json.loads(worker.last_line)["rows"]})
    outputs = {
        codec: [np.load(folder / f"out{rank}.{codec}.npy") for rank in range(len(workers))]
        for codec in codecs
    }
    return outputs, reports


def say(started: float, text: str) -> None:
    print(f"[{time.monotonic() - started:5.1f} s] {text}", file=sys.stderr, flush=True)
