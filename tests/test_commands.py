"""The commands as a person types them: start orders and mistakes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import numpy as np
import pytest

from switchreduce import Communicator
from switchreduce.errors import SwitchError, UsageError
from switchreduce.p4.builds import constants
from switchreduce.sim.processes import Process
from switchreduce.worker.cli import read_array
from tests.cluster import running_cluster


def command(*arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "switchreduce.cli", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def assert_one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 1, done.stderr
    # a busy machine may be told first what the command waits for
    lines = [line for line in done.stderr.strip().splitlines() if " waits for " not in line]
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0]


@pytest.fixture(scope="module")
def cluster():
    with running_cluster() as running:
        yield running


@pytest.fixture
def gradient(tmp_path):
    path = tmp_path / "in.npy"
    np.save(path, np.arange(1000, dtype=np.float32).reshape(10, 100))
    return path


def worker_arguments(
    controller: str, gradient, rank: int = 0, world_size: int = 1, job: str = "cli"
) -> list[str]:
    return [
        "worker", "allreduce", "--controller", controller, "--job", job, "--rank", str(rank),
        "--world-size", str(world_size), "--input", str(gradient),
    ]  # fmt: skip


def test_processes_find_each_other_in_any_start_order(tmp_path, gradient):
    p4runtime, control, data = free_port(), free_port(), free_port(socket.SOCK_DGRAM)
    outputs = [tmp_path / f"out{rank}.npy" for rank in range(2)]

    def worker(rank: int) -> Process:
        arguments = worker_arguments(f"127.0.0.1:{control}", gradient, rank, 2)
        return Process(f"worker {rank}", *arguments, "--output", str(outputs[rank]), "--json")

    with (
        worker(1) as second,
        Process(
            "controller", "controller", "--listen", f"127.0.0.1:{control}",
            "--switch", f"127.0.0.1:{p4runtime}",
            "--data-address", f"127.0.0.1:{data}", "--wait", "60",
        ),
        worker(0) as first,
        Process(
            "switch", "switch", "--no-p4", "--cpu-port", str(constants.CPU_PORT), "--grpc-server-addr",
            f"127.0.0.1:{p4runtime}", "--udp", f"127.0.0.1:{data}@127.0.0.1:{constants.AGGREGATION_PORT}",
        ),
    ):  # fmt: skip
        for process in (first, second):
            assert process.wait(90) == 0, process.output
        assert json.loads(first.last_line)["rows"][0]["codec"] == "auto"
    expected = 2 * np.load(gradient)
    for path in outputs:
        np.testing.assert_array_equal(np.load(path), expected)


def test_every_command_has_help():
    for arguments in ([], ["demo"], ["switch"], ["controller"], ["worker"], ["worker", "allreduce"]):
        done = command(*arguments, "--help")
        assert done.returncode == 0
        assert "usage: switchreduce" in done.stdout


def test_a_table_for_a_person(cluster, gradient):
    done = command(*worker_arguments(cluster.controller, gradient), "--codec", "auto,sketch,dense")
    assert done.returncode == 0, done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines()] == [
        "codec",
        "auto=dense",
        "sketch",
        "dense",
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ("No such file",)),
        (b"", ("not a readable .npy",)),
        (b"not an array at all", ("not a readable .npy",)),
        (np.lib.format.MAGIC_PREFIX + b"\x01\x00", ("not a readable .npy",)),
    ],
)
def test_an_input_that_is_not_an_array(cluster, tmp_path, content, words):
    path = tmp_path / "input.npy"
    if content is not None:
        path.write_bytes(content)
    assert_one_line(command(*worker_arguments(cluster.controller, path)), "input.npy", *words)


def test_an_archive_and_pickled_objects_are_refused(cluster, tmp_path):
    archive = tmp_path / "many.npy"
    with archive.open("wb") as file:
        np.savez(file, a=np.ones(3))
    assert_one_line(command(*worker_arguments(cluster.controller, archive)), "many.npy", "archive")
    objects = tmp_path / "objects.npy"
    np.save(objects, np.array([{}, None], object), allow_pickle=True)
    assert_one_line(command(*worker_arguments(cluster.controller, objects)), "objects.npy")
    small = tmp_path / "small.npy"
    np.save(small, np.ones(3, np.uint8))
    assert_one_line(command(*worker_arguments(cluster.controller, small)), "uint8")


def test_mistakes_in_arguments(cluster, gradient):
    assert_one_line(command(*worker_arguments(cluster.controller, gradient, 3, 2)), "rank 3")
    assert_one_line(command(*worker_arguments(cluster.controller, gradient), "--codec", "zip"), "zip")
    missing = command(*worker_arguments(cluster.controller, gradient), "--output", "/nowhere/out.npy")
    assert_one_line(missing, "/nowhere")
    assert_one_line(command(*worker_arguments("nonsense", gradient), "--timeout", "1"), "nonsense")


def test_debug_shows_the_trace(cluster, gradient):
    done = command("worker", "--debug", *worker_arguments(cluster.controller, gradient, 3, 2)[1:])
    assert done.returncode != 0
    assert "Traceback" in done.stderr


def test_nobody_there(gradient):
    absent = f"127.0.0.1:{free_port()}"
    assert_one_line(
        command(*worker_arguments(absent, gradient), "--timeout", "1"), "no controller answers", absent
    )
    done = command("controller", "--listen", "127.0.0.1:0", "--switch", absent, "--wait", "1")
    assert_one_line(done, absent)


def test_ports_that_are_taken(cluster):
    taken = command("controller", "--listen", cluster.controller, "--switch", cluster.p4runtime)
    assert_one_line(taken, cluster.controller.rsplit(":", 1)[1])
    taken = command("switch", "--no-p4", "--grpc-server-addr", cluster.p4runtime)
    assert_one_line(taken, cluster.p4runtime.rsplit(":", 1)[1])
    place = f"{cluster.data[0]}:{cluster.data[1]}"
    taken = command("switch", "--no-p4", "--grpc-server-addr", "127.0.0.1:0", "--udp", place)
    assert_one_line(taken, str(cluster.data[1]))


def test_a_switch_that_dies_ends_the_job_on_every_rank(gradient):
    with (
        running_cluster() as cluster,
        Process(
            "worker 0", *worker_arguments(cluster.controller, gradient, 0, 2), "--timeout", "10"
        ) as worker,
        Communicator.connect(cluster.controller, job="cli", rank=1, world_size=2, timeout=10) as communicator,
    ):
        # both have joined, and worker 0 waits for this rank's contribution
        cluster.switch_process.kill()
        with pytest.raises(SwitchError):
            communicator.allreduce(np.ones((10, 100), np.float32))
        assert worker.wait(20) == 1
        assert "switch" in worker.last_line


def npy_header(descr: str, shape: str) -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "not a readable"),
        (b"PK\x03\x04" + bytes(50), "not a readable"),
        (npy_header("<f4", "(3,)") + bytes(11), "not a readable"),
        (npy_header("<f4", "(3,)") + bytes(13), "after the array's end"),
        (npy_header("<f4", "(-3,)"), "not a readable"),
        (npy_header("<f4", "(10000000000000,)"), "memory"),
        (npy_header("|O", "(3,)") + bytes(24), "not a readable"),
        (npy_header("<f4", "({{{{{{,)"), "not a readable"),
        (npy_header("zz", "(3,)"), "not a readable"),
        (None, "No such file"),
    ],
)
def test_a_file_that_is_no_array_is_said(tmp_path, content, word):
    path = tmp_path / "in.npy"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=word) as caught:
        read_array(path)
    assert len(str(caught.value).splitlines()) == 1
