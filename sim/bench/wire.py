"""`bench wire`: the bits that a rank sends for a call, against what the union's information needs.

Counted, not timed: calls of four ranks through the embedded switch, in a job that minimises bytes. What
counts are the lanes of the packets sent, all of them: the call's description, magnitude keys, index, values
and the padding of last packets, but no retransmissions. Headers have a column of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
SIZE, QUICK_SIZE = 64 * codec.BLOCK, codec.BLOCK
DENSITIES = (0.01, 0.05, 0.2)
TARGETS = {"packed": Target(1.05, at_most=True), "sketch": Target(1.25, at_most=True)}
BUILD = "wide256"
CALLS = 3  # of which the last counts: a job's later calls know how large the union was


@dataclass(frozen=True)
class Needed:
    """What the arrays of a call need on the wire, all blocks together."""

    size: int  # coordinates
    union: int  # of which not zero on some rank
    entropy: float  # bits that say which those are
    least_index: int  # bits of the smallest index that ranks can OR, of codec.SHAPES
    values: Mapping[str, int]  # bits of the sums' lanes, by codec

    @property
    def bound(self) -> float:
        """H(U) + 32 |U| bits."""
        return self.entropy + 32 * self.union


def needed(arrays: list[Array]) -> Needed:
    """Block by block; H(U) = n h(|U| / n) for a block of n coordinates, with the binary entropy h (Shannon
    1948). U are the coordinates whose integer is not zero on some rank."""
    keys = np.maximum.reduce([codec.scan(x).keys for x in arrays])
    entropy, union, least_index = 0.0, 0, 0
    values = dict.fromkeys(TARGETS, 0)
    for number, key in enumerate(keys):
        part = slice(number * codec.BLOCK, (number + 1) * codec.BLOCK)
        scale = codec.BlockScale.from_key(np.float32, int(key), len(arrays))
        index = np.bitwise_or.reduce([codec.quantise(x[part], scale).index for x in arrays])
        size = arrays[0][part].size
        searched = [_search(index, size, shape) for shape in codec.SHAPES]
        least_index += min(bits for bits, _ in searched)
        coordinates = searched[-1][1]
        union += coordinates.size
        entropy += size * _binary_entropy(coordinates.size / size)
        values["packed"] += 32 * codec.plan_packed(coordinates, size, scale.limbs).lanes
        values["sketch"] += 32 * codec.plan_sketch(coordinates, size, scale.limbs).lanes
    return Needed(arrays[0].size, union, entropy, least_index, values)


def _search(index: np.ndarray, size: int, shape: codec.Shape) -> tuple[int, np.ndarray]:
    """(bits of all levels, in whole lanes; coordinates) of an index that is the union already."""
    search = codec.UnionSearch(index, size, shape)
    bits = 0
    while not search.done:
        lanes = np.empty(search.lanes, np.uint32)
        bits += 32 * lanes.size
        search.write(lanes)
        search.read(lanes)
    return bits, search.coordinates


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
            need = needed(arrays)
            for name, target in TARGETS.items():
                settings.say(f"{case}, {name}")
                packets = count_packets(controller, arrays, name)
                rows.append(_row(case, name, need, packets, build, target))
    return rows


def _row(case: str, name: str, need: Needed, packets: int, build: Build, target: Target) -> Row:
    """In bits a coordinate. `least index` is what the smallest index takes without padding."""
    lane_bits = packets * build.lanes * LANE_BYTES * 8
    header_bits = packets * (datagram_bytes(build) + envelope_bytes(build)) * 8 - lane_bits
    return counted_row(
        "wire", f"{case}, {name}", "bits/coordinate", lane_bits / need.size,
        "H(U) + 32 |U| per block", need.bound / need.size, target,
        note=f"{RANKS} ranks, {build.lanes} lanes a packet; headers: Ethernet, IPv4, UDP and slot header",
        details={
            "coordinates": need.size,
            "union %": 100 * need.union / need.size,
            "H(U)": need.entropy / need.size,
            "values": need.values[name] / need.size,
            "least index": need.least_index / need.size,
            "headers": header_bits / need.size,
        },
    )  # fmt: skip


def count_packets(controller: str, arrays: list[Array], name: str) -> int:
    """Packets, each sent once, that a rank needs for a call with codec ``name``. The result is checked."""

    def calls(communicator: Communicator, rank: int) -> tuple[int, bytes]:
        for _ in range(CALLS):
            array = arrays[rank].copy()
            report = communicator.allreduce(array, codec=name)
        return report.packets_sent - report.retransmits, array.tobytes()

    counts, results = zip(
        *run_ranks(controller, f"wire-{name}", len(arrays), calls, minimise="bytes"), strict=True
    )
    if set(results) != {codec.exact_allreduce(arrays).result.tobytes()}:
        raise AssertionError(f"{name} did not give the exact sum")
    if len(set(counts)) != 1:
        raise AssertionError(f"the ranks sent {counts} packets")
    return int(counts[0])
