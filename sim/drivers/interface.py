"""A port driver for a network interface (AF_PACKET): for veth pairs, Mininet and real cards. Needs root."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import select
import socket
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from switchreduce.errors import UsageError
from switchreduce.sim.drivers.udp_frames import PORTS
from switchreduce.sim.target import Frames

# <linux/if_ether.h>, <linux/if_packet.h>; the socket module names none of these.
ETH_P_ALL = 0x0003
SOL_PACKET = 263
PACKET_ADD_MEMBERSHIP = 1
PACKET_MR_PROMISC = 1
PACKET_AUXDATA = 8
PACKET_IGNORE_OUTGOING = 23
SO_RCVBUFFORCE = 33
SIOCGIFMTU = 0x8921
TP_STATUS_CSUMNOTREADY = 1 << 3
TP_STATUS_VLAN_VALID = 1 << 4
TP_STATUS_VLAN_TPID_VALID = 1 << 6
AUXDATA = struct.Struct("=IIIHHHH")  # struct tpacket_auxdata

VLAN_AT = 12  # a tag goes behind the two Ethernet addresses
VLAN_BYTES = 4
ETHERNET_BYTES = 14
MAX_FRAME_BYTES = 65536 + ETHERNET_BYTES + VLAN_BYTES

SOCKET_BUFFER_BYTES = 8 * 2**20
SEND_PATIENCE_S = 0.02


@dataclass
class InterfaceCounters:
    """Frames since the start."""

    received: int = 0
    sent: int = 0
    oversized: int = 0  # longer than the interface's MTU: segmentation offload, dropped
    checksum_missing: int = 0  # checksum offload: forwarded with the checksum that its sender left out
    send_failed: int = 0


class InterfaceDriver:
    """One network interface as one switch port; frames go in and out as they are.

    Raises UsageError when there is no such interface or no right to open it.
    """

    def __init__(self, port: int, interface: str) -> None:
        self.port = port
        self.interface = interface
        self.counters = InterfaceCounters()
        self.owned = np.zeros(PORTS, np.bool_)
        self.owned[port] = True
        self.place = f"port {port} {interface}"
        self.socket = _open(interface)
        self._max_frame = _mtu(self.socket, interface) + ETHERNET_BYTES + VLAN_BYTES

    def receive(self, frames: Frames) -> None:
        """Fills ``frames`` with frames that wait, as far as there is room; never blocks."""
        view = memoryview(frames.data)
        count = 0
        at = 0
        while count < len(frames.offset) and at + MAX_FRAME_BYTES <= frames.data.size:
            try:
                # Behind room for the VLAN tag, which the kernel has taken out of the frame.
                size, control, _, _ = self.socket.recvmsg_into(
                    [view[at + VLAN_BYTES : at + MAX_FRAME_BYTES]], socket.CMSG_SPACE(AUXDATA.size)
                )
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.ENETDOWN:
                    break  # the interface is down; frames come again when it is up
                raise
            start = at + VLAN_BYTES
            status, *_, tag, tag_kind = AUXDATA.unpack(control[0][2][: AUXDATA.size]) if control else (0,) * 7
            if size > self._max_frame:
                self.counters.oversized += 1
                continue
            if status & TP_STATUS_CSUMNOTREADY:
                self.counters.checksum_missing += 1
            if status & TP_STATUS_VLAN_VALID:
                kind = tag_kind if status & TP_STATUS_VLAN_TPID_VALID else 0x8100
                view[at : at + VLAN_AT] = bytes(view[start : start + VLAN_AT])
                view[at + VLAN_AT : start + VLAN_AT] = struct.pack("!HH", kind, tag)
                start, size = at, size + VLAN_BYTES
            frames.offset[count] = start
            frames.length[count] = size
            frames.port[count] = self.port
            at = start + size
            count += 1
        frames.count = count
        self.counters.received += count

    def send(self, frames: Frames, selected: NDArray[np.int64]) -> None:
        """Sends the ``selected`` frames (indices, int64[n]) as they are."""
        view = memoryview(frames.data)
        starts, lengths = frames.offset[selected].tolist(), frames.length[selected].tolist()
        for start, length in zip(starts, lengths, strict=True):
            if self._send_frame(view[start : start + length]):
                self.counters.sent += 1
            else:
                self.counters.send_failed += 1

    def _send_frame(self, frame: memoryview) -> bool:
        for patience in (SEND_PATIENCE_S, 0.0):
            try:
                self.socket.send(frame)
                return True
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.ENOBUFS):
                    return False
                if patience:
                    select.select([], [self.socket], [], patience)
        return False

    def close(self) -> None:
        self.socket.close()

    def summary(self) -> str:
        """One line for an operator."""
        c = self.counters
        line = f"{self.place}: {c.received} in, {c.sent} out; lost: {c.send_failed} not taken"
        if c.oversized:
            line += (
                f", {c.oversized} longer than the MTU (turn segmentation offload off where they come from: "
                "ethtool -K DEV gso off tso off gro off)"
            )
        if c.checksum_missing:
            line += (
                f"; {c.checksum_missing} without checksum (turn checksum offload off where they come from: "
                "ethtool -K DEV tx off)"
            )
        return line


def _open(interface: str) -> socket.socket:
    try:
        index = socket.if_nametoindex(interface)
    except OSError as error:
        raise UsageError(f"there is no network interface {interface!r}: 'ip link' lists them") from error
    try:
        # Protocol 0 receives nothing until bind names one: so no frame of another interface gets in.
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    except PermissionError as error:
        raise UsageError(
            f"opening interface {interface} needs root (or CAP_NET_RAW); --udp HOST:PORT needs no rights"
        ) from error
    raw.setblocking(False)
    raw.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    raw.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    with contextlib.suppress(PermissionError):  # root in a container may lack CAP_NET_ADMIN
        raw.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, SOCKET_BUFFER_BYTES)
    # struct packet_mreq: interface, type, no address
    raw.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, struct.pack("iHH8s", index, PACKET_MR_PROMISC, 0, b""))
    raw.bind((interface, ETH_P_ALL))
    return raw


def _mtu(raw: socket.socket, interface: str) -> int:
    # struct ifreq: the name, then a union of 24 bytes that begins with the MTU
    request = struct.pack("16si20x", interface.encode(), 0)
    return int(struct.unpack("16si20x", fcntl.ioctl(raw, SIOCGIFMTU, request))[1])
