"""Ranks and one embedded switch in virtual time: every loss, duplicate, delay and reordering on demand.

The engines are the ones that workers run and the switch runs the compiled P4 program; only sockets, clocks
and scheduling are replaced, so any schedule can be had and had again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address

import numpy as np
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from switchreduce.p4.builds import Build, constants
from switchreduce.p4.packet import datagram_bytes, envelope_bytes
from switchreduce.sim.target import Switch
from switchreduce.worker.transport.engine import SlotEngine


class Direction(Enum):
    """Which leg of its way a packet is on."""

    TO_SWITCH = "to switch"
    TO_RANK = "to rank"


Fate = Callable[[Direction, int, float], Sequence[float]]
"""Decides what happens to a packet: (direction, switch port, now in s) -> the delays in s after which copies
of it arrive. None of them loses it, two duplicate it, unequal ones reorder it."""


@dataclass(frozen=True)
class Endpoint:
    """Where a rank is attached."""

    port: int
    address: str
    udp_port: int

    @property
    def mac(self) -> str:
        return f"02:00:00:00:{self.port >> 8:02x}:{self.port & 255:02x}"


class Stuck(AssertionError):
    """The ranks did not finish within the time they were given."""


class VirtualNetwork:
    """Carries datagrams between engines and `switch`; `now` is virtual time in seconds."""

    def __init__(self, switch: Switch, build: Build, switch_address: str, fate: Fate) -> None:
        self.now = 0.0
        self.packets = 0
        self._switch = switch
        self._switch_address = switch_address
        self._fate = fate
        self._size = datagram_bytes(build)
        self._envelope = envelope_bytes(build)
        self._engines: dict[int, SlotEngine] = {}
        self._headers: dict[int, bytes] = {}
        self._receivers: dict[int, tuple[bytes, bytes]] = {}  # what a frame to this port must be addressed to
        self._events: list[tuple[float, int, Direction, int, bytes]] = []
        self._counter = 0

    def attach(self, endpoint: Endpoint, engine: SlotEngine) -> None:
        """Put a rank's engine on a switch port."""
        packet = (
            Ether(src=endpoint.mac, dst="02:53:52:00:00:01")
            / IP(src=endpoint.address, dst=self._switch_address, flags="DF")
            / UDP(sport=endpoint.udp_port, dport=constants.AGGREGATION_PORT, chksum=0)
            / bytes(self._size)
        )
        self._engines[endpoint.port] = engine
        self._headers[endpoint.port] = bytes(packet)[: self._envelope]
        self._receivers[endpoint.port] = (
            bytes.fromhex(endpoint.mac.replace(":", "")),
            IPv4Address(endpoint.address).packed,
        )

    def detach(self, port: int) -> None:
        """The rank on `port` dies; packets that are under way still arrive."""
        del self._engines[port]

    def send(self, port: int, datagram: bytes) -> None:
        """Put a datagram on the wire from `port` to the switch."""
        self._launch(Direction.TO_SWITCH, port, self._headers[port] + datagram)

    def run(self, finished: Callable[[], bool], limit: float) -> None:
        """Run until `finished()`. Raises Stuck once `limit` seconds of virtual time have passed."""
        touched = set(self._engines)  # those that may have something to send or another deadline
        deadlines: dict[int, float | None] = {}
        while True:
            for port in touched & self._engines.keys():
                engine = self._engines[port]
                while (datagrams := engine.datagrams_to_send(self.now)).size:
                    for datagram in datagrams:
                        self.send(port, datagram.tobytes())
                deadlines[port] = engine.next_deadline()
            if finished():
                return
            moments = [d for port, d in deadlines.items() if d is not None and port in self._engines]
            if self._events:
                moments.append(self._events[0][0])
            if not moments:
                raise Stuck(f"nothing is under way and no timer is set at {self.now:.6f} s")
            if min(moments) > limit:
                raise Stuck(f"not finished after {limit} s of virtual time")
            self.now = max(self.now, min(moments))
            touched = self._deliver()
            for port, deadline in deadlines.items():
                if deadline is not None and deadline <= self.now and port in self._engines:
                    self._engines[port].handle_timer(self.now)
                    touched.add(port)

    def _launch(self, direction: Direction, port: int, frame: bytes) -> None:
        self.packets += 1
        for delay in self._fate(direction, port, self.now):
            self._counter += 1
            heapq.heappush(self._events, (self.now + delay, self._counter, direction, port, frame))

    def _deliver(self) -> set[int]:
        """Let everything arrive that is due; the ports whose engines got something."""
        reached = set()
        while self._events and self._events[0][0] <= self.now:
            _, _, direction, port, frame = heapq.heappop(self._events)
            if direction is Direction.TO_SWITCH:
                for egress_port, out in self._switch.process(port, frame, int(self.now * 1e6)):
                    self._launch(Direction.TO_RANK, egress_port, out)
            elif port in self._engines:
                self._receive(port, frame)
                reached.add(port)
        return reached

    def _receive(self, port: int, frame: bytes) -> None:
        mac, address = self._receivers[port]
        if frame[:6] != mac or frame[30:34] != address:
            raise AssertionError(f"a frame for another host left on port {port}: {frame[:42].hex()}")
        payload = np.frombuffer(frame, np.uint8)[self._envelope :].copy()
        self._engines[port].receive_datagrams(payload, payload.size, payload.size, self.now)
