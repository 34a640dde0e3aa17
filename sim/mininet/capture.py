"""Capture what crosses each port of a star's switch, both ways, as one pcap file a port."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from functools import partial
from pathlib import Path
from types import TracebackType

from scapy.utils import RawPcapWriter

from switchreduce.errors import UsageError
from switchreduce.sim.mininet.namespaces import in_namespace
from switchreduce.sim.mininet.topology import Star

# <linux/if_ether.h>, <linux/if_packet.h>, <asm-generic/socket.h>; the socket module names none of these.
ETH_P_ALL = 0x0003
SOL_PACKET = 263
PACKET_STATISTICS = 6
SO_RCVBUFFORCE = 33
SO_TIMESTAMPNS = 35
TIMESPEC = struct.Struct("@qq")  # struct timespec on 64-bit kernels

LINKTYPE_ETHERNET = 1  # tcpdump.org/linktypes.html
MAX_FRAME_BYTES = 65536
BUFFER_BYTES = 16 * 2**20
POLL_S = 0.2


class Capture:
    """Writes `folder`/<interface>.pcap for every port of `star`'s switch while its block runs.

    Raises UsageError if a file cannot be written.
    """

    def __init__(self, star: Star, folder: Path) -> None:
        self.frames = 0
        self.missed = 0  # frames that came faster than they could be written
        self._writers: dict[socket.socket, RawPcapWriter] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="capture")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for interface in star.ports.values():
                path = folder / f"{interface}.pcap"
                writer = RawPcapWriter(str(path), linktype=LINKTYPE_ETHERNET, nano=True)
                writer.write_header(None)
                tap = in_namespace(star.switch.pid, partial(_open, interface))
                self._writers[tap] = writer
        except OSError as error:
            self._close()
            raise UsageError(f"--pcap {folder}: {error.strerror or error}") from error

    def __enter__(self) -> Capture:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        for tap in self._writers:
            # struct tpacket_stats: packets, drops
            self.missed += struct.unpack("II", tap.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))[1]
        self._close()

    def _run(self) -> None:
        while True:
            ready, _, _ = select.select(list(self._writers), [], [], POLL_S)
            for tap in ready:
                self._drain(tap)
            if not ready and self._stop.is_set():  # what had arrived by then is written
                return

    def _drain(self, tap: socket.socket) -> None:
        writer = self._writers[tap]
        while True:
            try:
                frame, control, _, _ = tap.recvmsg(MAX_FRAME_BYTES, socket.CMSG_SPACE(TIMESPEC.size))
            except BlockingIOError:
                return
            seconds, nanoseconds = (
                TIMESPEC.unpack(control[0][2]) if control else divmod(time.time_ns(), 10**9)
            )
            writer.write_packet(frame, sec=seconds, usec=nanoseconds)  # nanoseconds, as the writer is "nano"
            self.frames += 1

    def _close(self) -> None:
        for tap, writer in self._writers.items():
            tap.close()
            writer.close()


def _open(interface: str) -> socket.socket:
    # Protocol 0 receives nothing until bind names one: so no frame of another interface gets in.
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    tap.setblocking(False)
    tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
    tap.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    tap.bind((interface, ETH_P_ALL))
    return tap
