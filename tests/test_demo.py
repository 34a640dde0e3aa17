"""The whole, as a user starts it: six processes, real gradients, real sockets."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "switchreduce.cli", "demo", "--json", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=280)


@pytest.mark.parametrize("arguments", [(), ("--loss", "0.05", "--seed", "3")], ids=["clean", "5% loss"])
def test_recorded_gradients_come_back_exact(arguments):
    done = demo(*arguments)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["exact"] is True
    assert [row["codec"] for row in report["rows"]] == ["sketch", "dense"]
    for row in report["rows"]:
        assert row["exact"] is True
        assert row["max_error"] <= row["error_bound"]
        assert row["ratio"] == pytest.approx(961_665 * 4 / row["bytes_sent"])
        if arguments:
            assert row["retransmits"] > 0


def test_a_users_own_arrays(tmp_path):
    rng = np.random.default_rng(1)
    arrays = {f"rank{r}": (rng.standard_normal((50, 40)) * (rng.random((50, 40)) < 0.2)) for r in range(3)}
    np.savez(tmp_path / "mine.npz", **arrays)
    done = demo("--input", str(tmp_path / "mine.npz"), "--codec", "sketch", "--op", "mean")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"][0]["exact"] is True


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--input", "absent.npz"), "absent.npz"),
        (("--codec", "zip"), "zip"),
        (("--loss", "1.5"), "--loss"),
        (("--workers", "0"), "--workers"),
    ],
)
def test_bad_arguments_get_one_line(arguments, word):
    done = demo(*arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert word in done.stderr


def test_nan_in_the_input_names_rank_and_index(tmp_path):
    np.savez(tmp_path / "nan.npz", rank0=np.ones(10, np.float32), rank1=np.full(10, np.nan, np.float32))
    done = demo("--input", str(tmp_path / "nan.npz"))
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "rank 1 has nan at index (0,)" in last
