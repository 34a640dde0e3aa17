"""The embedded switch as a process behind its UDP socket, and a plain echo of the same packets."""

from __future__ import annotations

import select
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Address
from pathlib import Path

import numpy as np

from switchreduce.controller.entries import Location
from switchreduce.controller.switch_client import Callbacks, SwitchConnection
from switchreduce.errors import SwitchReduceError
from switchreduce.p4.builds import Build, constants
from switchreduce.p4.packet import datagram_bytes, datagram_dtype
from switchreduce.sim.bench.contributions import RANKS, Numbers, contributions, entries
from switchreduce.sim.bench.rows import Sample
from switchreduce.sim.drivers.udp import SO_RCVBUFFORCE, SOCKET_BUFFER_BYTES, UDP_GRO, UDP_SEGMENT
from switchreduce.sim.drivers.udp_frames import MAX_PAYLOAD_BYTES, MAX_SEGMENTS, port_mac
from switchreduce.sim.processes import Process

LOOPBACK = "127.0.0.1"
ROUNDS_IN_FLIGHT = 2  # super-datagrams of each rank
LEAST_BUFFER = 8  # of the bytes in flight: the kernel counts memory, not payload
START_TIMEOUT = 120.0  # s; the embedded switch compiles each build once
SILENCE = 2.0  # s without a result after which packets must have been lost


class Client:
    """Four ranks on sockets of their own, each with two super-datagrams of contributions in flight.

    Round k is one super-datagram a rank; it is sent once all results of round k - 2, which had the same
    slots, are there. The server may also be an echo: what comes back is counted, not read.
    """

    def __init__(self, build: Build) -> None:
        self._size = datagram_bytes(build)
        self._sockets = [_open_socket() for _ in range(RANKS)]
        granted = self._sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        fitting = granted // LEAST_BUFFER // ROUNDS_IN_FLIGHT // self._size
        self.burst = max(1, min(MAX_SEGMENTS, MAX_PAYLOAD_BYTES // self._size, fitting))
        self.slots = ROUNDS_IN_FLIGHT * self.burst
        self._turn = 0
        self._datagrams = [
            [
                contributions(build, rank, range(first, first + self.burst), self.slots)
                for rank in range(RANKS)
            ]
            for first in range(0, self.slots, self.burst)
        ]
        self._numbers = [[Numbers(each, self.slots) for each in turn] for turn in self._datagrams]
        self._views = [[each.data.cast("B") for each in turn] for turn in self._datagrams]
        self._cut = [(socket.SOL_UDP, UDP_SEGMENT, struct.pack("H", self._size))] if self.burst > 1 else []
        self._buffer = bytearray(1 << 16)
        for each in self._sockets:
            each.bind((LOOPBACK, 0))
        self._poller = select.poll()
        self._by_descriptor = {each.fileno(): rank for rank, each in enumerate(self._sockets)}
        for each in self._sockets:
            self._poller.register(each, select.POLLIN)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [each.getsockname() for each in self._sockets]

    def announce(self, server: tuple[str, int]) -> None:
        """Send one packet from each rank in turn: the UDP driver numbers its ports in the order of peers."""
        for each in self._sockets:
            each.sendto(bytes(self._size), server)

    def exchange(self, server: tuple[str, int], rounds: int) -> Sample:
        """Contributions and wall time for ``rounds`` rounds. Raises SwitchReduceError if some get lost."""
        start = time.perf_counter()
        sent = received = 0
        while received < rounds * RANKS * self.burst:
            while sent < rounds and sent < received // (RANKS * self.burst) + ROUNDS_IN_FLIGHT:
                self._send(server)
                sent += 1
            ready = self._poller.poll(SILENCE * 1000)
            if not ready:
                raise SwitchReduceError(
                    f"{sent * RANKS * self.burst - received} packets were lost on the way through "
                    f"{server[0]}:{server[1]}: run as root, or raise net.core.rmem_max"
                )
            for descriptor, _ in ready:
                received += self._receive(self._by_descriptor[descriptor])
        return Sample(rounds * RANKS * self.burst, time.perf_counter() - start)

    def _send(self, server: tuple[str, int]) -> None:
        turn = self._turn
        for each, view, numbers in zip(self._sockets, self._views[turn], self._numbers[turn], strict=True):
            each.sendmsg([view], self._cut, 0, server)
            numbers.advance()
        self._turn = (self._turn + 1) % ROUNDS_IN_FLIGHT

    def _receive(self, rank: int) -> int:
        size = self._sockets[rank].recvmsg_into([self._buffer], socket.CMSG_SPACE(4))[0]
        return size // self._size

    def check(self, server: tuple[str, int], build: Build) -> None:
        """One round whose results must be the sums."""
        sums = np.add.reduce([each["lanes"] for each in self._datagrams[self._turn]], dtype=np.uint32)
        self._send(server)
        for rank in range(RANKS):
            found = np.zeros(0, datagram_dtype(build))
            while len(found) < self.burst:
                count = self._receive(rank)
                got = np.frombuffer(self._buffer, found.dtype, count)
                found = np.concatenate([found, got])
            if not np.array_equal(found["lanes"], sums) or not (found["rank"] == rank).all():
                raise AssertionError(f"rank {rank} got wrong sums")

    def close(self) -> None:
        for each in self._sockets:
            each.close()


def _open_socket() -> socket.socket:
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    enlarge_buffer(udp)
    udp.setsockopt(socket.SOL_UDP, UDP_GRO, 1)
    udp.settimeout(SILENCE)
    return udp


def enlarge_buffer(udp: socket.socket) -> None:
    udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
    try:
        udp.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, SOCKET_BUFFER_BYTES)
    except PermissionError:
        pass  # not root


class Server:
    """A process that answers at ``address``."""

    def __init__(self, process: Process, address: tuple[str, int]) -> None:
        self.process = process
        self.address = address


@contextmanager
def embedded_switch(build: Build, client: Client) -> Iterator[Server]:
    """`switchreduce switch`, programmed over P4Runtime with the entries of ``client``'s job."""
    with ExitStack() as stack:
        process = stack.enter_context(
            Process(
                "switch", "switch", "--no-p4", "--cpu-port", str(constants.CPU_PORT),
                "--grpc-server-addr", f"{LOOPBACK}:0",
                "--udp", f"{LOOPBACK}:0@{LOOPBACK}:{constants.AGGREGATION_PORT}",
            )
        )  # fmt: skip
        p4runtime, data = process.wait_for(r"P4Runtime on (\S+), data on udp (\S+)", START_TIMEOUT).groups()
        connection = SwitchConnection(p4runtime, 0, build, Callbacks(lambda *_: None, lambda _: None))
        stack.callback(connection.close)
        connection.push_pipeline()
        address = _parse(data)
        client.announce(address)
        connection.write_stages(entries(LOOPBACK, _locations(client.addresses), client.slots))
        server = Server(process, address)
        client.check(address, build)
        yield server


def _locations(addresses: Sequence[tuple[str, int]]) -> list[Location]:
    return [
        Location(port, int.from_bytes(port_mac(port), "big"), int(IPv4Address(host)), udp_port)
        for port, (host, udp_port) in enumerate(addresses, 1)
    ]


@contextmanager
def plain_echo() -> Iterator[Server]:
    """A process that sends each super-datagram back as it came."""
    with Process("echo", program=(sys.executable, str(Path(__file__).with_name("echo.py")))) as process:
        address = process.wait_for(r"echo on udp (\S+)", START_TIMEOUT).group(1)
        yield Server(process, _parse(address))


def _parse(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
