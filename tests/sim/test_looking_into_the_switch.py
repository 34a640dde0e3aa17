"""What docs/operation.md shows of a running switch, command by command, on both targets."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from switchreduce import defaults
from switchreduce.errors import UsageError
from switchreduce.p4.builds import constant_names, constants, load_build
from switchreduce.p4.packet import datagram_bytes, envelope_bytes
from switchreduce.p4.scapy_layer import SwitchReduce
from switchreduce.sim.mininet import star as mininet_star
from switchreduce.sim.mininet.library import require_mininet
from switchreduce.sim.mininet.namespaces import in_namespace
from switchreduce.sim.mininet.topology import AGGREGATION_ADDRESS, Star, inside
from switchreduce.sim.processes import Process
from tests.cluster import running_cluster
from tests.documented import OPERATION, session, shape
from tests.waiting import eventually

BUILD = load_build(defaults.BUILD)
RANKS = 2
RANK = """\
import signal, sys
import numpy as np
from switchreduce import Communicator
controller, rank, world_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with Communicator.connect(controller, job="train", rank=rank, world_size=world_size) as communicator:
    communicator.allreduce(np.where(np.arange(20_000) % 17 == rank, 0.5, 0).astype(np.float32))
    print("summed", flush=True)
    signal.pause()
"""
START_TIMEOUT = 120.0
SHELL_TIMEOUT = 60.0


@dataclass(frozen=True)
class System:
    """A running switch with a job of RANKS ranks that has summed an array and goes on."""

    p4runtime: str
    place: tuple[str, ...]  # what runs a command where the switch is
    addresses: list[str]  # of the ranks
    stranger: socket.socket  # sends to the switch and is no rank


def start_ranks(stack: ExitStack, controller: str, places: list[tuple[str, ...]]) -> None:
    ranks = [
        stack.enter_context(
            Process(
                f"rank {rank}", RANK, controller, str(rank), str(RANKS),
                program=(*place, sys.executable, "-c"),
            )
        )
        for rank, place in enumerate(places)
    ]  # fmt: skip
    for rank in ranks:
        rank.wait_for("summed", START_TIMEOUT)


def connected_to(*address: object) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.connect(address)
    return made


@contextmanager
def embedded() -> Iterator[System]:
    with ExitStack() as stack:
        cluster = stack.enter_context(running_cluster())
        start_ranks(stack, cluster.controller, [()] * RANKS)
        stranger = stack.enter_context(connected_to(*cluster.data))
        yield System(cluster.p4runtime, (), ["127.0.0.1"] * RANKS, stranger)


@contextmanager
def bmv2() -> Iterator[System]:
    with ExitStack() as stack:
        star = stack.enter_context(Star(RANKS))
        switch = stack.enter_context(mininet_star.start_switch("bmv2", star))
        stack.enter_context(mininet_star.start_controller(star, switch, BUILD.name))
        start_ranks(stack, mininet_star.CONTROLLER, [inside(host) for host in star.hosts])
        stranger = in_namespace(
            star.hosts[0].pid, lambda: connected_to(AGGREGATION_ADDRESS, constants.AGGREGATION_PORT)
        )
        stack.enter_context(stranger)
        addresses = [f"10.0.0.{rank + 1}" for rank in range(RANKS)]
        yield System(mininet_star.P4RUNTIME, inside(star.switch), addresses, stranger)


@pytest.fixture(scope="module", params=["embedded", "bmv2"])
def system(request: pytest.FixtureRequest) -> Iterator[System]:
    if request.param == "bmv2":
        if shutil.which(mininet_star.BMV2) is None:
            pytest.skip(f"there is no {mininet_star.BMV2} on PATH")
        try:
            require_mininet()
        except UsageError as error:
            pytest.skip(str(error))
    with {"embedded": embedded, "bmv2": bmv2}[request.param]() as running:
        yield running


class Shell:
    """p4runtime-shell as the document starts it."""

    def __init__(self, system: System, folder: Path) -> None:
        [line] = re.findall(r"^\$ python (-m p4runtime_sh .*)$", OPERATION, re.M)
        address = f"127.0.0.1:{defaults.P4RUNTIME_PORT}"
        assert address in line
        self._process = subprocess.Popen(
            [*system.place, sys.executable, *line.replace(address, system.p4runtime).split()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder,
            env=os.environ | {
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1",
                "IPYTHONDIR": str(folder), "TERM": "dumb",
            },
        )  # fmt: skip
        self._limit = threading.Timer(SHELL_TIMEOUT, self._process.kill)
        self._limit.start()
        self.run("")

    def run(self, command: str) -> list[str]:
        """What `command` prints, line by line."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        end = "\n\n" if command.startswith("for ") else "\n"
        self._process.stdin.write(f"{command}{end}print('that', 'is all')\n")
        self._process.stdin.flush()
        printed = []
        for line in self._process.stdout:
            line = line.replace("P4Runtime sh >>> ", "").strip()
            if line.endswith("that is all"):
                return printed
            if line:
                printed.append(line)
        raise AssertionError(f"the shell ended: {printed}")

    def close(self) -> None:
        self._limit.cancel()
        self._process.communicate("exit()\n", timeout=SHELL_TIMEOUT)


@pytest.fixture
def shell(system: System, tmp_path: Path) -> Iterator[Shell]:
    started = Shell(system, tmp_path)
    yield started
    started.close()


def test_who_is_admitted_and_what_has_come_from_each(system: System, shell: Shell) -> None:
    printed = []
    for command, documented in session("SwitchIngress.admission.members"):
        lines = shell.run(command)
        assert shape(lines) == shape(documented)
        printed += sorted(line.split() for line in lines)
    admitted, contributions = printed[:RANKS], printed[RANKS:]
    assert admitted == [["1", str(rank), address] for rank, address in enumerate(system.addresses)]
    assert [int(rank) for rank, _, _ in contributions] == list(range(RANKS))
    size = envelope_bytes(BUILD) + datagram_bytes(BUILD)
    for _, packets, octets in contributions:
        assert int(packets) > 20_000 * RANKS / 17 / BUILD.lanes
        assert int(octets) == size * int(packets)


def test_what_is_dropped(system: System, shell: Shell) -> None:
    *steps, (look, documented) = session("drops()")
    for command, _ in steps:
        assert shell.run(command) == []
    assert shell.run(look) == ["{}"]
    foreign = bytes(SwitchReduce(job=999, lanes=[1] * BUILD.lanes))
    for datagram in (foreign, foreign, b"nonsense", foreign[:-4], foreign + bytes(4)):
        system.stranger.send(datagram)
    expected = "{'malformed': 3, 'unadmitted': 2}"
    eventually(lambda: shell.run(look) == [expected])
    assert re.fullmatch(r"\{('\w+': \d+(, )?)+\}", documented[0])


def test_a_backup_cannot_write(shell: Shell) -> None:
    printed = shell.run("multicast_group_entry(77).add(1, 1).insert()")
    assert any("PERMISSION_DENIED" in line for line in printed)


def test_the_document_names_every_reason() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| .+ \|$", OPERATION, re.M)
    reasons = constant_names("DROP_")
    del reasons[constants.DROP_REASONS]  # how many there are
    assert {int(index): name for index, name in rows} == reasons
