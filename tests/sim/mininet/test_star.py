"""The star as a user starts it, on real interfaces. Runs as root, with Mininet; with BMv2 where it is."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import RawPcapReader

from switchreduce.errors import UsageError
from switchreduce.p4.builds import constants, load_build
from switchreduce.p4.packet import datagram_bytes, envelope_bytes
from switchreduce.p4.scapy_layer import SwitchReduce
from switchreduce.sim.mininet.impairment import Impairment
from switchreduce.sim.mininet.library import require_mininet
from switchreduce.sim.mininet.star import BMV2
from tests.waiting import eventually

WORKERS = 3
STAR = [sys.executable, "-m", "switchreduce.sim.mininet.star"]


@pytest.fixture(scope="module", autouse=True)
def _mininet():
    try:
        require_mininet()
    except UsageError as error:
        pytest.skip(str(error))


@pytest.fixture(params=["bmv2", "embedded"])
def target(request):
    if request.param == "bmv2" and shutil.which(BMV2) is None:
        pytest.skip(f"there is no {BMV2} on PATH")
    return request.param


@pytest.fixture
def gradients(tmp_path) -> Path:
    rng = np.random.default_rng(5)
    path = tmp_path / "gradients.npz"
    shape = (40_000,)
    arrays = {
        f"rank{r}": (rng.standard_normal(shape) * (rng.random(shape) < 0.1)).astype(np.float32)
        for r in range(WORKERS)
    }
    np.savez(path, **arrays)
    return path


def star(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*STAR, "--json", *arguments], capture_output=True, text=True, timeout=280)


def rows_of(done: subprocess.CompletedProcess[str]) -> list[dict]:
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["exact"] is True
    assert all(row["exact"] for row in report["rows"])
    return report["rows"]


def test_exact_and_every_frame_captured_as_it_would_be_on_a_wire(target, gradients, tmp_path):
    folder = tmp_path / "pcap"
    done = star("--switch", target, "--build", "jumbo2048", "--input", str(gradients), "--pcap", str(folder))
    rows = rows_of(done)
    assert [row["codec"] for row in rows] == ["packed", "sketch", "dense"]
    assert "missed 0" in done.stderr
    build = load_build("jumbo2048")
    size = datagram_bytes(build) + envelope_bytes(build)
    sent = 0
    for port in range(1, WORKERS + 1):
        kinds = Counter()
        for frame, _ in RawPcapReader(str(folder / f"s1-eth{port}.pcap")):
            packet = Ether(frame)
            if UDP not in packet:
                continue
            assert len(frame) == size
            rebuilt = packet.copy()
            del rebuilt[IP].chksum
            if packet[UDP].chksum:  # zero is none; the switch sends such
                del rebuilt[UDP].chksum
            assert bytes(rebuilt) == frame
            kinds[packet[SwitchReduce].kind] += 1
            assert packet[SwitchReduce].rank == port - 1
        assert kinds.keys() == {constants.KIND_HELLO, constants.KIND_CONTRIBUTION, constants.KIND_RESULT}
        sent += kinds[constants.KIND_CONTRIBUTION]
    reported = sum(row["bytes_sent"] for row in rows) * WORKERS / datagram_bytes(build)
    assert sent == round(reported)


def test_exact_with_losses(target, gradients):
    rows = rows_of(star("--switch", target, "--input", str(gradients), "--loss", "3"))
    assert sum(row["retransmits"] for row in rows) > 0


def test_bandwidth_bounds_the_rate(gradients):
    megabits = 4.0
    rows = rows_of(
        star("--switch", "embedded", "--input", str(gradients), "--codec", "dense", "--bw", str(megabits))
    )
    least = 40_000 * 4 * 8 / (megabits * 1e6)
    assert rows[0]["seconds"] > 0.8 * least  # a token bucket lets its first 15 kB go at once


def test_delay_is_refused_by_a_kernel_without_netem(gradients):
    probe = ["mnexec", "-n", "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1us"]
    done = star("--switch", "embedded", "--input", str(gradients), "--codec", "dense", "--delay", "20ms")
    if subprocess.run(probe, capture_output=True).returncode:
        assert done.returncode == 1
        assert "netem" in done.stderr.splitlines()[-1]
    else:
        assert rows_of(done)[0]["seconds"] > 0.04  # there and back


def test_a_switch_that_does_not_start_is_said_at_once(gradients, tmp_path):
    broken = tmp_path / BMV2
    broken.write_text("#!/bin/sh\necho no such library\nexit 127\n")
    broken.chmod(0o755)
    command = [*STAR, "--switch", "bmv2", "--input", str(gradients)]
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=280, env=os.environ | {"PATH": path}
    )
    assert done.returncode == 1
    # and not, after 30 s, that the controller found none
    assert done.stderr.splitlines()[-1] == "star: error: switch stopped: no such library"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_leaves_nothing_running(tmp_path, number):
    command = [*STAR, "--switch", "embedded", "--loss", "60"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(tmp_path)}
    ) as process:
        for line in process.stderr:
            if "starting 4 workers" in line:
                break
        time.sleep(0.5)
        # 5 shells, the switch, the controller and the workers; they hold the namespaces
        started = children(process.pid)
        assert len(started) >= 5 + 2 + 4
        process.send_signal(number)
        status = process.wait(60)
    if number == signal.SIGKILL:
        eventually(lambda: not any(map(is_running, started)))
    else:
        assert status == 128 + number
        assert not any(map(is_running, started))
        assert list(tmp_path.iterdir()) == []


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(pid: int) -> list[int]:
    """Processes that `pid` started, from the kernel's table."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        if parent == pid:
            found.append(int(status.parent.name))
    return found


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"bandwidth": 0}, "--bw"),
        ({"bandwidth": 1001}, "--bw"),
        ({"bandwidth": float("nan")}, "--bw"),
        ({"delay": "10"}, "--delay"),
        ({"delay": "1ms; reboot"}, "--delay"),
        ({"loss": 100}, "--loss"),
        ({"loss": -1}, "--loss"),
        ({"loss": float("nan")}, "--loss"),
    ],
)
def test_what_no_link_can_do_is_refused(settings, word):
    with pytest.raises(UsageError, match=word):
        Impairment(**settings)
