"""BMv2 on veth pairs: frames into four ports and out of them, a bounded number in flight."""

from __future__ import annotations

import select
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from switchreduce.controller.entries import Location
from switchreduce.controller.switch_client import Callbacks, SwitchConnection
from switchreduce.errors import SwitchError, SwitchReduceError
from switchreduce.p4.builds import Build
from switchreduce.p4.packet import datagram_dtype, envelope_bytes
from switchreduce.sim.bench.contributions import RANKS, contributions, entries, frames
from switchreduce.sim.bench.report import BMV2
from switchreduce.sim.bench.rows import Sample
from switchreduce.sim.mininet.namespaces import in_namespace
from switchreduce.sim.mininet.topology import Star, inside
from switchreduce.sim.processes import Process

ADDRESS = "10.0.0.254"
IN_FLIGHT = 32  # contributions; BMv2 drops inside itself when more come in one burst
CHUNKS = IN_FLIGHT // RANKS
ETH_P_IP = 0x0800  # unlike ETH_P_ALL, shows a socket no frames that it sent itself
PATIENCE = 0.5  # s without a result after which the chunks in flight are sent again
GIVE_UP = 20  # times in a row
START_TIMEOUT = 30.0  # s
READ_BYTES = 128  # of a result: the headers


class Bmv2:
    """BMv2 with ``build`` on a star of its own; ``exchange`` drives it from the hosts' ends of the links."""

    def __init__(self, process: Process, star: Star, build: Build) -> None:
        self.process = process
        self.resent = 0  # contributions, because BMv2 lost some
        self._sockets = [in_namespace(host.pid, partial(_open, f"h{rank}-eth0"))
                         for rank, host in enumerate(star.hosts)]  # fmt: skip
        self._poller = select.poll()
        self._by_descriptor = {each.fileno(): rank for rank, each in enumerate(self._sockets)}
        for each in self._sockets:
            self._poller.register(each, select.POLLIN)
        # Not the hosts' own addresses: their kernels take results for somebody else's and stay silent.
        self.locations = [
            Location(rank + 1, 0x020000000001 + rank, 0x0A090001 + rank, 4000 + rank) for rank in range(RANKS)
        ]
        self._frames = [
            frames(build, contributions(build, rank, range(CHUNKS), CHUNKS), where, ADDRESS)
            for rank, where in enumerate(self.locations)
        ]
        self._views = [[packets[k : k + 1].data.cast("B") for k in range(CHUNKS)] for packets in self._frames]
        offsets = datagram_dtype(build).fields
        assert offsets is not None
        self._chunk_at, self._version_at = (
            envelope_bytes(build) + offsets[name][1] for name in ("chunk", "version")
        )
        self._buffer = bytearray(READ_BYTES)
        self._next_chunk = 0

    def exchange(self, chunks: int) -> Sample:
        """Contributions and wall time until every rank has every result."""
        start = time.perf_counter()
        first, self._next_chunk = self._next_chunk, self._next_chunk + chunks
        waiting: dict[int, set[int]] = {}  # by chunk, the ranks without its result
        next_chunk, silences = first, 0
        while waiting or next_chunk < self._next_chunk:
            while len(waiting) < CHUNKS and next_chunk < self._next_chunk:
                # the slot must be free: that of the chunk CHUNKS before, which is done if none so old waits
                if waiting and next_chunk - min(waiting) >= CHUNKS:
                    break
                self._send(next_chunk)
                waiting[next_chunk] = set(range(RANKS))
                next_chunk += 1
            ready = self._poller.poll(PATIENCE * 1000)
            silences = 0 if ready else silences + 1
            if silences > GIVE_UP:
                raise SwitchReduceError("BMv2 answers no more")
            for chunk in [] if ready else list(waiting):
                self._send(chunk)
                self.resent += RANKS
            for descriptor, _ in ready:
                self._receive(self._by_descriptor[descriptor], waiting)
        return Sample(RANKS * chunks, time.perf_counter() - start)

    def _send(self, chunk: int) -> None:
        place, version = chunk % CHUNKS, chunk // CHUNKS & 1
        for views, each in zip(self._views, self._sockets, strict=True):
            frame = views[place]
            frame[self._chunk_at : self._chunk_at + 4] = chunk.to_bytes(4, "big")
            frame[self._version_at] = version
            each.send(frame)

    def _receive(self, rank: int, waiting: dict[int, set[int]]) -> None:
        """One frame, as poll says that there is one; asking for more until there is none costs more."""
        self._sockets[rank].recv_into(self._buffer)
        chunk = int.from_bytes(self._buffer[self._chunk_at : self._chunk_at + 4], "big")
        ranks = waiting.get(chunk)
        if ranks is not None:
            ranks.discard(rank)
            if not ranks:
                del waiting[chunk]

    def check(self, build: Build) -> None:
        """One chunk whose results must be the sums."""
        self._send(self._next_chunk)
        place = self._next_chunk % CHUNKS
        self._next_chunk += 1
        sums = np.add.reduce([each["datagram"]["lanes"][place] for each in self._frames], dtype=np.uint32)
        for rank, each in enumerate(self._sockets):
            if not select.select([each], [], [], PATIENCE)[0]:
                raise SwitchReduceError("BMv2 sends no result")
            frame = each.recv(1 << 16)
            result = np.frombuffer(frame[envelope_bytes(build) :], datagram_dtype(build))[0]
            if result["rank"] != rank or not np.array_equal(result["lanes"], sums):
                raise AssertionError(f"rank {rank} got wrong sums from BMv2")

    def close(self) -> None:
        for each in self._sockets:
            each.close()


@contextmanager
def running_bmv2(build: Build) -> Iterator[Bmv2]:
    """Needs root, Mininet and BMv2. Raises SwitchReduceError."""
    with ExitStack() as stack:
        # P4Runtime on a Unix socket: the switch's network is not this process's
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="switchreduce-"))
        address = f"unix:{Path(folder) / 'p4runtime'}"
        star = stack.enter_context(Star(RANKS))
        process = stack.enter_context(
            Process(
                "BMv2", "--no-p4", *(f"-i{port}@{name}" for port, name in star.ports.items()),
                "--", "--grpc-server-addr", address, program=(*inside(star.switch), BMV2),
            )
        )  # fmt: skip
        connection = _connect(address, build, process)
        stack.callback(connection.close)
        connection.push_pipeline()
        bmv2 = Bmv2(process, star, build)
        stack.callback(bmv2.close)
        connection.write_stages(entries(ADDRESS, bmv2.locations, CHUNKS))
        bmv2.check(build)
        yield bmv2


def _connect(address: str, build: Build, process: Process) -> SwitchConnection:
    """Tries until BMv2 listens."""
    end = time.monotonic() + START_TIMEOUT
    while True:
        try:
            return SwitchConnection(address, 0, build, Callbacks(lambda *_: None, lambda _: None))
        except SwitchError:
            if time.monotonic() > end or not process.running:
                raise
            time.sleep(0.1)


def _open(interface: str) -> socket.socket:
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    raw.setblocking(False)
    raw.bind((interface, ETH_P_IP))
    return raw
