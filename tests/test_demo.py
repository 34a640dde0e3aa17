"""The whole, as a user starts it: six processes, real gradients, real sockets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

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
    assert [row["codec"] for row in report["rows"]] == ["packed", "sketch", "dense"]
    for row in report["rows"]:
        assert row["exact"] is True
        assert row["max_error"] <= row["error_bound"]
        assert row["ratio"] == pytest.approx(961_665 * 4 / row["bytes_sent"])
        if arguments:
            assert row["retransmits"] > 0


@pytest.mark.parametrize("codec", ["auto", "exact"])
def test_a_users_own_arrays(tmp_path, codec):
    rng = np.random.default_rng(1)
    arrays = {f"rank{r}": (rng.standard_normal((50, 40)) * (rng.random((50, 40)) < 0.2)) for r in range(3)}
    np.savez(tmp_path / "mine.npz", **arrays)
    done = demo("--input", str(tmp_path / "mine.npz"), "--codec", codec, "--op", "mean")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"][0]["exact"] is True


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--input", "absent.npz"), "absent.npz"),
        (("--codec", "zip"), "zip"),
        (("--loss", "1.5"), "--loss"),
        (("--workers", "0"), "--workers"),
        (("--workers", "65"), "--workers"),
        (("--seed", "-1"), "--seed"),
    ],
)
def test_bad_arguments_get_one_line(arguments, word):
    done = demo(*arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert word in done.stderr


def test_a_sum_beyond_float32_is_infinite_as_numpys_is(tmp_path):
    top = np.finfo(np.float32).max
    np.savez(tmp_path / "big.npz", **{f"rank{r}": np.array([top, 1, -top], np.float32) for r in range(2)})
    done = demo("--input", str(tmp_path / "big.npz"))
    assert done.returncode == 0, done.stderr
    for row in json.loads(done.stdout, parse_constant=pytest.fail)["rows"]:
        assert row["exact"] is True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_neither_processes_nor_files_behind(tmp_path, number):
    command = [sys.executable, "-m", "switchreduce.cli", "demo", "--loss", "0.9"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(tmp_path)}
    ) as process:
        for line in process.stderr:
            if "starting 4 workers" in line:
                break
        time.sleep(0.5)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        started = children.read_text().split() if children.exists() else []
        process.send_signal(number)
        time.sleep(0.05)
        process.send_signal(number)  # who is impatient disturbs nothing
        assert process.wait(30) == 128 + number
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)
    assert list(tmp_path.iterdir()) == []


def test_output_that_cannot_be_written_is_an_error_in_one_line(tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    np.save(tmp_path / "one.npy", np.ones(1, np.float32))
    command = [sys.executable, "-m", "switchreduce.cli", "demo", "--input", str(tmp_path / "one.npy")]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*command, "--workers", "2"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=280
        )
    assert done.returncode == 1
    assert "No space left" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_nan_in_the_input_names_rank_and_index(tmp_path):
    np.savez(tmp_path / "nan.npz", rank0=np.ones(10, np.float32), rank1=np.full(10, np.nan, np.float32))
    done = demo("--input", str(tmp_path / "nan.npz"))
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "rank 1 has nan at index (0,)" in last
