"""A hello as the switch hands it to the controller: where a rank is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from switchreduce.controller.entries import Location
from switchreduce.p4.builds import Build, constants
from switchreduce.p4.packet import header_dtype

HEADERS = ("ethernet", "ipv4", "udp", "slot")  # of a hello; the switch leaves the lanes out


@dataclass(frozen=True)
class Hello:
    job_id: int
    generation: int
    rank: int
    ticket: int
    location: Location


def parse(build: Build, metadata: Mapping[str, int], payload: bytes) -> Hello | None:
    """The hello in a packet-in, or None if it holds none."""
    headers: dict[str, np.void] = {}
    offset = 0
    for name in HEADERS:
        dtype = header_dtype(build, name)
        if len(payload) < offset + dtype.itemsize:
            return None
        headers[name] = np.frombuffer(payload, dtype, count=1, offset=offset)[0]
        offset += dtype.itemsize
    slot = headers["slot"]
    if slot["magic"] != constants.MAGIC or slot["kind"] != constants.KIND_HELLO:
        return None
    return Hello(
        job_id=int(slot["job"]),
        generation=int(slot["generation"]),
        rank=int(slot["rank"]),
        ticket=int(slot["chunk"]),
        location=Location(
            port=metadata["ingress_port"],
            mac=int.from_bytes(headers["ethernet"]["src"].tobytes(), "big"),
            address=int(headers["ipv4"]["src"]),
            udp_port=int(headers["udp"]["src_port"]),
        ),
    )
