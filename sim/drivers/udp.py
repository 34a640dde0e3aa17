"""A port driver that needs no rights: one UDP socket, each peer address a switch port."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from switchreduce.errors import UsageError
from switchreduce.sim.drivers import udp_frames, udp_messages
from switchreduce.sim.drivers.impairment import Impairment
from switchreduce.sim.drivers.peers import PeerTable
from switchreduce.sim.drivers.udp_frames import HEADER_BYTES, MAX_SEGMENTS, PORTS
from switchreduce.sim.drivers.udp_messages import NAME_WORDS, UDP_GRO, UDP_SEGMENT, Inbox, Outbox
from switchreduce.sim.target import Frames
from switchreduce.sim.target.frames import address

SO_RCVBUFFORCE = 33  # <asm-generic/socket.h>; the socket module does not name it

# One received super-datagram: up to 64 KiB, and up to 128 segments (UDP_MAX_SEGMENTS since Linux 6.9).
SLOT_BYTES = 65536
SLOT_SEGMENTS = 128

# Super-datagrams per batch. The batch's payloads are touched three times (received, framed, sent), so it
# should stay in the second-level cache.
SLOTS = 16

SOCKET_BUFFER_BYTES = 32 * 2**20

# How long a full socket buffer may hold up the data plane before packets are dropped instead.
SEND_PATIENCE_S = 0.02


@dataclass
class UdpCounters:
    """Packets since the start."""

    received: int = 0
    sent: int = 0
    no_port_free: int = 0  # from a new peer while all ports are taken
    not_udp: int = 0  # for a peer, but not IPv4 with a whole UDP datagram in it
    send_failed: int = 0  # the socket did not take it


class UdpDriver:
    """Switch ports behind one UDP socket. Not thread-safe: the data plane's thread calls it.

    ``bind`` is (host, port), port 0 for a free one; ``advertised`` (IPv4 address, port) is what the program
    takes for its own address, the socket's own if None. ``reserved`` ports are left to others. Raises
    UsageError when the socket cannot be had.
    """

    def __init__(
        self,
        bind: tuple[str, int],
        *,
        advertised: tuple[str, int] | None = None,
        reserved: Iterable[int] = (),
        impairment: Impairment | None = None,
    ) -> None:
        udp_frames.compile_kernels()
        udp_messages.compile_kernels()
        self.counters = UdpCounters()
        self.impairment = impairment
        self.socket = _bind(bind)
        self.address: tuple[str, int] = self.socket.getsockname()
        self.place = f"udp {self.address[0]}:{self.address[1]}"
        self.buffer_bytes = _enlarge_buffers(self.socket)
        self.segmentation = _enable_offload(self.socket)
        host, port = advertised or self.address
        if host == "0.0.0.0":
            raise UsageError(
                f"--udp {bind[0]}:{bind[1]} listens on every address: add @IP:PORT, the address that the "
                "P4 program shall see as its own"
            )
        self._destination = (socket.inet_aton(host), port or self.address[1])
        self._peers = PeerTable(reserved)
        self.owned = np.zeros(PORTS, np.bool_)
        self._templates = np.zeros((PORTS, HEADER_BYTES), np.uint8)
        self._inbox = Inbox(SLOTS, SLOT_BYTES)
        self._starts = np.arange(SLOTS, dtype=np.int64) * SLOT_BYTES
        self._slots = np.zeros((4, SLOTS), np.int64)  # of those in use: start, size, segment size, port
        self._known: dict[int, tuple[str, int]] = {}  # senders' addresses by what the kernel calls them
        self._payloads = np.zeros((3, SLOTS * SLOT_SEGMENTS), np.int64)
        self._outbox = Outbox()
        self._names = np.zeros((PORTS, NAME_WORDS), np.int64)
        self._names_place = address(self._names)
        self._outgoing = np.empty(0, np.uint8)
        self._outgoing_view = self._outgoing.data
        self._outgoing_place = address(self._outgoing)
        self._runs = np.empty((5, 0), np.int64)
        self._segment_messages: dict[int, list[tuple[int, int, bytes]]] = {}

    # Into the switch

    def receive(self, frames: Frames) -> None:
        """Fills ``frames`` with what waits in the socket, as far as there is room; never blocks."""
        slots = self._receive_slots(min(SLOTS, _slots_that_fit(frames)))
        payloads = self._payloads
        count = udp_frames.split_datagrams(self._slots, slots, payloads)
        self.counters.received += count
        if self.impairment is not None:
            order = self.impairment.inward.plan(count)[: len(frames.offset)]
            payloads, count = payloads.take(order, axis=1), len(order)
        frames.count = udp_frames.wrap_payloads(
            self._inbox.data,
            payloads,
            count,
            self._templates,
            frames.data,
            frames.offset,
            frames.length,
            frames.port,
        )

    def _receive_slots(self, limit: int) -> int:
        """Receives up to ``limit`` super-datagrams; how many are from peers that have a port."""
        count = self._inbox.receive(self.socket.fileno(), limit)
        now = time.monotonic()
        slots = self._slots[:, :count]
        slots[0], slots[1] = self._starts[:count], self._inbox.size[:count]
        slots[2] = self._inbox.segment[:count]
        ports = [self._port(name, now) for name in self._inbox.name[:count].tolist()]
        slots[3] = ports
        if 0 not in ports:
            return count
        known = np.flatnonzero(slots[3])
        for _, size, segment, port in slots.T.tolist():
            if not port:
                self.counters.no_port_free += max(1, -(-size // max(1, segment)))
        slots[:, : len(known)] = slots[:, known]
        return len(known)

    def _port(self, name: int, now: float) -> int:
        """The port of the peer that the kernel calls ``name``; 0, which no peer has, if all are taken."""
        port = self._peers.port_of(self._address(name), now)
        return port or self._admit(name, now) or 0

    def _address(self, name: int) -> tuple[str, int]:
        peer = self._known.get(name)
        if peer is None:
            if len(self._known) > 2 * PORTS:  # strangers must not fill the memory
                self._known.clear()
            peer = self._known[name] = udp_messages.address_of(name)
        return peer

    def _admit(self, name: int, now: float) -> int | None:
        peer = self._address(name)
        port = self._peers.admit(peer, now)
        if port is not None:
            source = (socket.inet_aton(peer[0]), peer[1])
            template = udp_frames.header_template(port, source, self._destination)
            self._templates[port] = np.frombuffer(template, np.uint8)
            self._names[port, 0] = name
            self.owned[port] = True
        return port

    # Out of the switch

    def send(self, frames: Frames, selected: NDArray[np.int64]) -> None:
        """Sends the payloads of the ``selected`` frames (indices, int64[n]) to their ports' peers."""
        if self.impairment is not None:
            selected = selected[self.impairment.outward.plan(len(selected))]
        self._make_room(frames, len(selected))
        runs, malformed = udp_frames.unwrap_frames(
            frames.data,
            frames.offset,
            frames.length,
            frames.port,
            selected,
            MAX_SEGMENTS if self.segmentation else 1,
            self._outgoing,
            self._runs,
        )
        self.counters.not_udp += malformed
        self._outbox.fill(self._runs, runs, self._outgoing_place, self._names_place)
        done = 0
        while done < runs:
            taken = self._outbox.send(self.socket.fileno(), done, runs - done)
            self.counters.sent += int(self._runs[4, done : done + taken].sum())
            done += taken
            if not taken:  # the socket is full, or refuses this one
                port, place, size, segment, count = self._runs[:, done].tolist()
                self._send_run(self._peers.addresses[port], place, size, segment, count)
                done += 1

    def _make_room(self, frames: Frames, count: int) -> None:
        # A batch may hold a frame twice when duplication is on.
        needed = 2 * frames.data.size if self.impairment is not None else frames.data.size
        if self._outgoing.size < needed:
            self._outgoing = np.empty(needed, np.uint8)
            self._outgoing_view = self._outgoing.data
            self._outgoing_place = address(self._outgoing)
        if self._runs.shape[1] < count:
            self._runs = np.empty((5, max(count, len(frames.offset))), np.int64)

    def _send_run(self, peer: tuple[str, int], place: int, size: int, segment: int, count: int) -> None:
        payload = self._outgoing_view[place : place + size]
        if count == 1:
            self._deliver([payload], [], peer, 1)
            return
        control = self._segment_messages.get(segment)
        if control is None:
            control = [(socket.SOL_UDP, UDP_SEGMENT, struct.pack("H", segment))]
            self._segment_messages[segment] = control
        if not self._deliver([payload], control, peer, count, may_refuse=True):
            # The route's MTU is smaller than a segment, or its device cannot segment: IP fragments instead.
            for at in range(0, size, segment):
                self._deliver([payload[at : at + segment]], [], peer, 1)

    def _deliver(
        self,
        payload: list[memoryview],
        control: list[tuple[int, int, bytes]],
        peer: tuple[str, int],
        count: int,
        *,
        may_refuse: bool = False,
    ) -> bool:
        """Sends one (super-)datagram of ``count`` packets; False when the kernel refuses to segment it."""
        for patience in (SEND_PATIENCE_S, 0.0):
            try:
                self.socket.sendmsg(payload, control, 0, peer)
                self.counters.sent += count
                return True
            except BlockingIOError:
                if patience:
                    select.select([], [self.socket], [], patience)
            except OSError as error:
                if may_refuse and error.errno in (errno.EINVAL, errno.EMSGSIZE, errno.EIO):
                    return False
                break
        self.counters.send_failed += count
        return True

    def close(self) -> None:
        self.socket.close()

    def summary(self) -> str:
        """One line for an operator."""
        c = self.counters
        line = (
            f"udp: {c.received} in, {c.sent} out, {len(self._peers)} peers; lost: "
            f"{c.no_port_free} no free port, {c.not_udp} not UDP, {c.send_failed} not taken by the socket"
        )
        if self.impairment is not None:
            into, out = self.impairment.inward, self.impairment.outward
            line += (
                f"; on purpose: {into.lost} + {out.lost} lost, {into.duplicated} + {out.duplicated} twice, "
                f"{into.reordered} + {out.reordered} reordered"
            )
        return line


def _slots_that_fit(frames: Frames) -> int:
    """How many super-datagrams of the largest size ``frames`` holds as frames."""
    by_bytes = frames.data.size // (SLOT_BYTES + SLOT_SEGMENTS * HEADER_BYTES)
    return min(by_bytes, len(frames.offset) // SLOT_SEGMENTS)


def _bind(address: tuple[str, int]) -> socket.socket:
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.setblocking(False)
    try:
        udp.bind(address)
    except (OSError, OverflowError) as error:
        udp.close()
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(
            f"cannot listen on udp {address[0]}:{address[1]}: {reason}. Choose another --udp HOST:PORT"
        ) from error
    return udp


def _enlarge_buffers(udp: socket.socket) -> int:
    """Asks for large buffers; how many bytes of datagrams the receive buffer holds."""
    udp.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
    with contextlib.suppress(PermissionError):
        udp.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, SOCKET_BUFFER_BYTES)
    # The kernel doubles what it grants, for its own bookkeeping (socket(7)).
    return udp.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2


def _enable_offload(udp: socket.socket) -> bool:
    """Turns on UDP_GRO; False where the kernel lacks it or UDP_SEGMENT."""
    try:
        udp.setsockopt(socket.SOL_UDP, UDP_SEGMENT, 0)
        udp.setsockopt(socket.SOL_UDP, UDP_GRO, 1)
    except OSError:
        return False
    return True
