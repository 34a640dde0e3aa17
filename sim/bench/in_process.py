"""The embedded switch without sockets, and NumPy's bare add of the same lanes."""

from __future__ import annotations

import time
from ipaddress import IPv4Address

import numpy as np

from switchreduce.controller.entries import Location
from switchreduce.p4.builds import Build, constants
from switchreduce.p4.packet import datagram_dtype, envelope_bytes
from switchreduce.sim.apply import apply
from switchreduce.sim.bench.contributions import RANKS, Numbers, contributions, entries, frames
from switchreduce.sim.bench.rows import Sample
from switchreduce.sim.target import Frames, Switch

ADDRESS = "10.0.0.254"
# Of all ranks' packets in a batch: 512 KB, what the UDP driver hands over when four ranks have two
# super-datagrams each in flight, as in over_udp.
BATCH_LANES = 512 * 256


class InProcess:
    """Batches of contributions through ``switch``, which runs ``build``; each chunk's four packets go in and
    its four results come out, in this process and thread.

    Timed is ``Switch.process_batch``: parse, tables, registers, multicast, checksums, deparse. The numbers of
    the next chunks are written between batches and not timed.
    """

    def __init__(self, switch: Switch, build: Build) -> None:
        self.chunks = max(1, BATCH_LANES // (RANKS * build.lanes))
        self.packets = RANKS * self.chunks
        self._slots = self.chunks
        self._switch = switch
        self._build = build
        locations = [
            Location(rank + 1, 0x020000000001 + rank, int(IPv4Address(f"10.0.0.{rank + 1}")), 4000 + rank)
            for rank in range(RANKS)
        ]
        apply(switch, entries(ADDRESS, locations, self._slots))
        by_rank = [
            frames(build, contributions(build, rank, range(self.chunks), self._slots), where, ADDRESS)
            for rank, where in enumerate(locations)
        ]
        frame_bytes = by_rank[0].itemsize
        self._incoming = Frames.allocate(self.packets, self.packets * frame_bytes)
        self._outgoing = Frames.allocate(self.packets, 2 * self.packets * frame_bytes)
        for chunk in range(self.chunks):  # a chunk's contributions follow each other
            for rank, where in enumerate(locations):
                self._incoming.append(where.port, by_rank[rank][chunk].tobytes())
        data = self._incoming.data.view(by_rank[0].dtype).reshape(self.chunks, RANKS)
        datagrams = [data[:, rank]["datagram"] for rank in range(RANKS)]
        self._numbers = [Numbers(each, self._slots) for each in datagrams]
        self.lanes = [each["lanes"].astype(np.uint32) for each in datagrams]
        self._check()

    def run(self, batches: int) -> Sample:
        """CPU time of this thread for ``batches`` batches; the amount is contributions."""
        spent = 0.0
        for _ in range(batches):
            self._incoming.cursor = 0
            self._outgoing.clear()
            start = time.thread_time()
            self._switch.process_batch(self._incoming, self._outgoing)
            spent += time.thread_time() - start
            for numbers in self._numbers:
                numbers.advance()
        if self._outgoing.count != self.packets:
            raise AssertionError(f"{self._outgoing.count} results left for {self.packets} contributions")
        return Sample(batches * self.packets, spent)

    def _check(self) -> None:
        """Every rank's results are the sums."""
        self.run(1)
        out = self._outgoing
        envelope = envelope_bytes(self._build)
        results = np.concatenate(
            [np.frombuffer(out.frame(k)[envelope:], datagram_dtype(self._build)) for k in range(out.count)]
        )
        sums = np.add.reduce(self.lanes, dtype=np.uint32)
        for rank in range(RANKS):
            mine = results[results["rank"] == rank]
            if not (mine["kind"] == constants.KIND_RESULT).all() or not np.array_equal(mine["lanes"], sums):
                raise AssertionError(f"rank {rank} got wrong sums")


class BareAdd:
    """NumPy adding the lanes of a batch, uint32 (chunks, lanes) a rank, into one array: no packets at all."""

    def __init__(self, lanes: list[np.ndarray]) -> None:
        self._lanes = lanes
        self._total = np.zeros_like(lanes[0])
        self._packets = len(lanes) * len(lanes[0])

    def run(self, times: int) -> Sample:
        """CPU time of this thread; the amount is packets' worth of lanes."""
        start = time.thread_time()
        for _ in range(times):
            for lanes in self._lanes:
                np.add(self._total, lanes, out=self._total)
        return Sample(times * self._packets, time.thread_time() - start)
