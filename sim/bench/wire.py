"""`bench wire`: the bits that a rank sends for a call, against what the union's information needs.

Counted, not timed: calls of four ranks through the embedded switch. What counts are the lanes of the packets
sent, all of them: the call's description, magnitude keys, index, values and the padding of last packets, but
no retransmissions. Headers have a column of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from switchreduce import Communicator
from switchreduce.p4.builds import Build, load_build
from switchreduce.p4.packet import LANE_BYTES, datagram_bytes, envelope_bytes
from switchreduce.sim.bench.cluster import run_ranks, running_cluster
from switchreduce.sim.bench.gradients import Array, alike, independent
from switchreduce.sim.bench.measure import Settings
from switchreduce.sim.bench.rows import Row, Target, counted_row
from switchreduce.sim.data import load_recorded_gradients
from switchreduce.worker import codec

RANKS = 4
SIZE, QUICK_SIZE = 4 * codec.BLOCK, codec.BLOCK
DENSITIES = (0.01, 0.05, 0.2)
TARGETS = {"packed": Target(1.05, at_most=True), "sketch": Target(1.25, at_most=True)}
BUILD = "wide256"
CALLS = 3  # of which the last counts: a job's later calls know how large the union was


@dataclass(frozen=True)
class Bound:
    """Of all blocks together: bits that say which coordinates the union has, and the union's size."""

    index_bits: float
    union: int

    @property
    def bits(self) -> float:
        return self.index_bits + 32 * self.union


def entropy_bound(arrays: list[Array]) -> Bound:
    """H(U) + 32 |U|, a block at a time; H(U) = n h(|U| / n) for a block of n coordinates, with the binary
    entropy h (Shannon 1948). U are the coordinates whose integer is not zero on some rank."""
    keys = np.maximum.reduce([codec.scan(x).keys for x in arrays])
    index_bits, union = 0.0, 0
    for number, key in enumerate(keys):
        part = slice(number * codec.BLOCK, (number + 1) * codec.BLOCK)
        scale = codec.BlockScale.from_key(np.float32, int(key), len(arrays))
        indexes = [codec.quantise(x[part], scale).index for x in arrays]
        count = int(np.unpackbits(np.bitwise_or.reduce(indexes).view(np.uint8)).sum())
        size = arrays[0][part].size
        index_bits += size * _binary_entropy(count / size)
        union += count
    return Bound(index_bits, union)


def _binary_entropy(p: float) -> float:
    return 0.0 if p in (0.0, 1.0) else float(-p * np.log2(p) - (1 - p) * np.log2(1 - p))


def run(settings: Settings) -> list[Row]:
    """The rows; each rank sends the same number of packets."""
    size = QUICK_SIZE if settings.quick else SIZE
    cases: dict[str, Callable[[], list[Array]]] = {}
    for density in DENSITIES[:1] if settings.quick else DENSITIES:
        cases[f"alike {density:.0%}"] = lambda p=density: alike(RANKS, size, p, seed=1)  # type: ignore[misc]
        cases[f"independent {density:.0%}"] = lambda p=density: independent(RANKS, size, p, seed=1)  # type: ignore[misc]
    cases["MovieLens"] = lambda: [x[:size] for x in load_recorded_gradients()]
    build = load_build(BUILD)
    rows = []
    settings.say("starting switch and controller")
    with running_cluster(BUILD) as controller:
        for case, make in cases.items():
            arrays = make()
            bound = entropy_bound(arrays)
            for name, target in TARGETS.items():
                settings.say(f"{case}, {name}")
                packets = count_packets(controller, arrays, name)
                rows.append(_row(f"{case}, {name}", bound, packets, build, arrays[0].size, target))
    return rows


def _row(name: str, bound: Bound, packets: int, build: Build, size: int, target: Target) -> Row:
    lane_bits = packets * build.lanes * LANE_BYTES * 8
    frame_bits = packets * (datagram_bytes(build) + envelope_bytes(build)) * 8
    return counted_row(
        "wire", name, "bits/coordinate", lane_bits / size,
        "H(U) + 32 |U| per block", bound.bits / size, target,
        note=f"{size:,} float32 a rank, {RANKS} ranks, {build.lanes} lanes a packet",
        details={
            "union %": 100 * bound.union / size,
            "H(U)": bound.index_bits / size,
            "headers": (frame_bits - lane_bits) / size,
            "ratio with headers": frame_bits / bound.bits,
        },
    )  # fmt: skip


def count_packets(controller: str, arrays: list[Array], name: str) -> int:
    """Packets, each sent once, that a rank needs for a call with codec ``name``. The result is checked."""

    def calls(communicator: Communicator, rank: int) -> tuple[int, bytes]:
        for _ in range(CALLS):
            array = arrays[rank].copy()
            report = communicator.allreduce(array, codec=name)
        return report.packets_sent - report.retransmits, array.tobytes()

    counts, results = zip(*run_ranks(controller, f"wire-{name}", len(arrays), calls), strict=True)
    if set(results) != {codec.exact_allreduce(arrays).result.tobytes()}:
        raise AssertionError(f"{name} did not give the exact sum")
    if len(set(counts)) != 1:
        raise AssertionError(f"the ranks sent {counts} packets")
    return int(counts[0])
