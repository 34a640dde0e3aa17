"""`switchreduce switch` as a process."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from switchreduce.cli import main

PROGRAMS = Path(__file__).parent / "p4runtime" / "programs"
READY = re.compile(r"switch: P4Runtime on (\S+):(\d+), data on (?:udp (\S+):(\d+)|no port\b.*)\n")


class SwitchProcess:
    """The command in a process of its own, in a folder of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "switchreduce.cli", "switch", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip

    def wait_until_ready(self) -> re.Match[str]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        ready = READY.fullmatch(line)
        assert ready, (line, self.process.communicate(timeout=10))
        return ready

    def stop(self, how: signal.Signals = signal.SIGTERM) -> tuple[str, str]:
        self.process.send_signal(how)
        return self.process.communicate(timeout=60)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., SwitchProcess]]:
    started: list[SwitchProcess] = []

    def start_one(*arguments: str) -> SwitchProcess:
        started.append(SwitchProcess(tmp_path, *arguments))
        return started[-1]

    yield start_one
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        each.process.communicate()


FREE = ("--grpc-server-addr", "127.0.0.1:0")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_is_runs_a_program_and_stops_cleanly(
    start: Callable[..., SwitchProcess], how: signal.Signals
) -> None:
    process = start(str(PROGRAMS / "reflect.json"), *FREE, "--udp", "127.0.0.1:0", "--stats")
    ready = process.wait_until_ready()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.settimeout(5)
        peer.connect((ready[3], int(ready[4])))
        peer.send(b"hello")
        assert peer.recv(100) == b"hello"
    with grpc.insecure_channel(f"{ready[1]}:{ready[2]}") as channel:
        stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
        version = stub.Capabilities(p4runtime_pb2.CapabilitiesRequest()).p4runtime_api_version
    assert version.split(".")[:1] == ["1"]
    output, errors = process.stop(how)
    assert process.process.returncode == 0
    assert "udp: 1 in, 1 out, 1 peers" in output
    assert "Traceback" not in errors


def test_it_stops_while_a_controller_is_connected(start: Callable[..., SwitchProcess]) -> None:
    process = start("--no-p4", *FREE)
    ready = process.wait_until_ready()
    with grpc.insecure_channel(f"{ready[1]}:{ready[2]}") as channel:
        stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
        hold = socket.socketpair()  # an iterator that never ends: it waits for a byte that nobody sends

        def requests() -> Iterator[p4runtime_pb2.StreamMessageRequest]:
            yield p4runtime_pb2.StreamMessageRequest(arbitration={"election_id": {"low": 1}})
            hold[0].recv(1)

        stream = stub.StreamChannel(requests())
        assert next(stream).arbitration.status.code == 0
        process.stop()
        assert process.process.returncode == 0
        hold[1].close()
        with pytest.raises(grpc.RpcError):
            list(stream)


def test_each_mistake_is_one_clear_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    taken_udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    taken_udp.bind(("127.0.0.1", 0))
    taken_tcp = socket.socket()
    taken_tcp.bind(("127.0.0.1", 0))
    taken_tcp.listen()
    udp = f"127.0.0.1:{taken_udp.getsockname()[1]}"
    tcp = f"127.0.0.1:{taken_tcp.getsockname()[1]}"
    missing, bad = str(tmp_path / "missing.json"), str(tmp_path / "bad.json")
    Path(bad).write_text("not a program")
    cases = {
        (): "--no-p4",
        ("--no-p4", bad): "not both",
        (missing,): "missing.json: No such file",
        (str(tmp_path),): "Is a directory",
        (bad,): "bad.json: this is not a compiled P4 program",
        ("--no-p4", "--udp", udp): f"udp {udp}: Address already in use",
        ("--no-p4", "--udp", "192.0.2.1:5"): "udp 192.0.2.1:5: Cannot assign requested address",
        ("--no-p4", "--udp", "0.0.0.0:0"): "@IP:PORT",
        ("--no-p4", "--grpc-server-addr", tcp): f"{tcp} for P4Runtime: Address already in use",
        ("--no-p4", "--grpc-server-addr", "nonsense"): "not HOST:PORT",
        ("--no-p4", "--grpc-server-addr", "no.such.host.invalid:1"): "no.such.host.invalid:1 for P4Runtime",
        ("--no-p4", "-i", "1@no-such-if"): "no network interface 'no-such-if'",
        ("--no-p4", "--cpu-port", "5", "-i", "5@lo"): "same port number 5",
        ("--no-p4", "--loss", "0.5"): "add --udp",
        ("--no-p4", "--pcap", bad): f"--pcap {bad}: File exists",
        ("--no-p4", "--pcap", f"{bad}/below"): f"--pcap {bad}/below: Not a directory",
        ("--no-p4", "--pcap", "/proc"): "--pcap /proc: ",
    }
    for arguments, expected in cases.items():
        assert main(["switch", *arguments]) == 1, arguments
        output, errors = capfd.readouterr()
        assert output == ""
        lines = [line for line in errors.splitlines() if not line.startswith("switch: ")]
        assert len(lines) == 1, errors
        assert lines[0].startswith("switchreduce switch: error: ")
        assert expected in lines[0]
    taken_udp.close()
    taken_tcp.close()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--udp", "127.0.0.1"),
        ("--udp", "127.0.0.1:1@here:2"),
        ("--loss", "2"),
        ("--cpu-port", "512"),
        ("-i", "veth1"),
        ("--device-id", "-1"),
        ("--stats", "0"),
    ],
)
def test_a_malformed_option_is_refused_by_name(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["switch", "--no-p4", *arguments])
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err.splitlines()[-1]
