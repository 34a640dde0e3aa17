"""A rank as a container runs it, against a switch and a controller of this machine."""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from switchreduce.sim.processes import Process
from tests.cluster import Cluster, running_cluster

TIMEOUT = 120.0  # s; what has never run on a machine compiles first


@pytest.fixture(scope="module")
def cluster():
    with running_cluster() as running:
        yield running


def start(stack: ExitStack, cluster: Cluster, rank: int, path: Path, codec: str = "sketch,dense") -> Process:
    return stack.enter_context(
        Process(
            f"rank {rank}", "-m", "switchreduce.sim.compose.rank", "--controller", cluster.controller,
            "--rank", str(rank), "--workers", "2", "--codec", codec, "--input", str(path),
            program=(sys.executable,),
        )
    )  # fmt: skip


def test_rank_0_ends_first_and_the_others_when_they_are_stopped(cluster, tmp_path):
    path = tmp_path / "sum.npy"
    np.save(path, np.random.default_rng(3).standard_normal(50_000).astype(np.float32))
    with ExitStack() as stack:
        first, second = (start(stack, cluster, rank, path) for rank in range(2))
        assert first.wait(TIMEOUT) == 0, first.output
        assert "rank 0, loss 0 %" in first.output
        assert [line.split()[-1] for line in first.output.splitlines()[-2:]] == ["yes", "yes"]
        second.wait_for(r"(?m)^dense .* yes$", TIMEOUT)
        assert second.running
        second.send_signal(signal.SIGTERM)
        assert second.wait(TIMEOUT) == 0, second.output


def test_rank_0_speaks_for_a_rank_whose_result_is_not_exact(cluster, tmp_path):
    # rank 1 expects the sum of other arrays than rank 0 sends, as if its result had gone wrong
    paths = [tmp_path / "rank0.npz", tmp_path / "rank1.npz"]
    ones = np.ones(1000, np.int32)
    np.savez(paths[0], rank0=ones, rank1=ones)
    np.savez(paths[1], rank0=2 * ones, rank1=ones)
    with ExitStack() as stack:
        first, second = (start(stack, cluster, rank, paths[rank], "dense") for rank in range(2))
        assert first.wait(TIMEOUT) == 1
        assert first.last_line == "rank 0: error: 1 of 2 ranks hold another result than the exact one"
        second.wait_for(r"(?m)^dense .* NO$", TIMEOUT)


def test_a_file_that_is_none_is_one_clear_line_on_every_rank(cluster, tmp_path):
    path = tmp_path / "gradients.npz"
    path.write_bytes(b"nonsense")
    with ExitStack() as stack:
        first, second = (start(stack, cluster, rank, path) for rank in range(2))
        assert first.wait(TIMEOUT) == 1
        assert first.output.startswith(f"rank 0: error: cannot load '{path}': ")
        assert len(first.output.splitlines()) == 1
        second.wait_for("rank 1: error: cannot load", TIMEOUT)
        assert second.running  # else compose would stop rank 0 before it could say so
