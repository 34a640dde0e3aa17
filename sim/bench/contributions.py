"""A job's packets as the switches under test get them: four ranks, SUM chunks, slots used in turn."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address

import numpy as np
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from switchreduce.controller.entities import Action
from switchreduce.controller.entries import Location, Stages, admission, local
from switchreduce.controller.slots import Lease
from switchreduce.p4.builds import Build, constants
from switchreduce.p4.packet import datagram_bytes, datagram_dtype, envelope_bytes

RANKS = 4
JOB, GROUP, GENERATION = 1, 1, 0x5EED
ENDPOINTS = tuple(range(1, RANKS + 1))
SWITCH_MAC = "02:53:52:00:00:01"


def entries(switch_address: str, locations: Sequence[Location], slots: int) -> Stages:
    """What the controller writes for the job once it has heard every rank."""
    lease = Lease(JOB, GROUP, ENDPOINTS, range(slots))
    stages = local(int(IPv4Address(switch_address)), int(SWITCH_MAC.replace(":", ""), 16))
    stages += admission(lease, GENERATION, locations)
    # the job never formed, so the entry that lets its hellos through is not there to be removed
    return tuple(tuple(u for u in stage if u.action is Action.INSERT) for stage in stages)


def contributions(build: Build, rank: int, chunks: range, slots: int) -> np.ndarray:
    """A rank's datagrams for `chunks`, with random lanes (structured array)."""
    datagrams = np.zeros(len(chunks), datagram_dtype(build))
    for name, value in (
        ("magic", constants.MAGIC),
        ("kind", constants.KIND_CONTRIBUTION),
        ("op", constants.OP_SUM),
        ("lane_count", build.lanes),
        ("job", JOB),
        ("rank", rank),
        ("generation", GENERATION),
        ("chunk", chunks),
        ("slot", np.array(chunks) % slots),
        ("version", np.array(chunks) // slots & 1),
    ):
        datagrams[name] = value
    random = np.random.default_rng(rank)
    datagrams["lanes"] = random.integers(0, 1 << 32, (len(chunks), build.lanes), np.uint32)
    return datagrams


class Numbers:
    """The chunk numbers of `datagrams` (structured array or view), which `advance` moves on to the next chunk
    in each one's slot."""

    def __init__(self, datagrams: np.ndarray, slots: int) -> None:
        self._chunk, self._version = datagrams["chunk"], datagrams["version"]
        self._native = self._chunk.astype(np.uint32)
        self._slots = np.uint32(slots)

    def advance(self) -> None:
        self._native += self._slots
        self._chunk[...] = self._native
        self._version ^= 1


def frames(build: Build, datagrams: np.ndarray, source: Location, switch_address: str) -> np.ndarray:
    """The datagrams with Ethernet, IPv4 and UDP in front; fields `envelope` and `datagram`, the latter a copy
    of its own."""
    packet = (
        Ether(src=source.mac.to_bytes(6, "big").hex(":"), dst=SWITCH_MAC)
        / IP(src=str(IPv4Address(source.address)), dst=switch_address, flags="DF")
        / UDP(sport=source.udp_port, dport=constants.AGGREGATION_PORT, chksum=0)
        / bytes(datagram_bytes(build))
    )
    envelope = np.frombuffer(bytes(packet)[: envelope_bytes(build)], np.uint8)
    result = np.zeros(len(datagrams), [("envelope", np.uint8, envelope.size), ("datagram", datagrams.dtype)])
    result["envelope"] = envelope
    result["datagram"] = datagrams
    return result


def lane_bytes(build: Build) -> int:
    """Bytes of lanes in one packet."""
    return 4 * build.lanes
