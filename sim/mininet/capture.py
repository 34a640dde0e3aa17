"""Capture what crosses each port of a star's switch, both ways, as one pcap file a port."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import TracebackType

from switchreduce.errors import SwitchReduceError, UsageError
from switchreduce.sim.mininet.namespaces import in_namespace
from switchreduce.sim.mininet.topology import Star
from switchreduce.sim.pcap import PcapFile, Record

# <linux/if_ether.h>, <linux/if_packet.h>, <asm-generic/socket.h>; the socket module names none of these.
ETH_P_ALL = 0x0003
SOL_PACKET = 263
PACKET_STATISTICS = 6
SO_RCVBUFFORCE = 33
SO_TIMESTAMPNS = 35
TIMESPEC = struct.Struct("@qq")  # struct timespec on 64-bit kernels

MAX_FRAME_BYTES = 65536
BUFFER_BYTES = 16 * 2**20
RECORDS_AT_ONCE = 256
POLL_S = 0.2


class Capture:
    """Writes `folder`/<interface>.pcap for every port of `star`'s switch while its block runs.

    Raises UsageError if a file cannot be begun, SwitchReduceError at the block's end if one could not go on.
    """

    def __init__(self, star: Star, folder: Path) -> None:
        self.frames = 0
        self.missed = 0  # frames that came faster than they could be written
        self._failure: OSError | None = None
        self._files: dict[socket.socket, PcapFile] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="capture")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for interface in star.ports.values():
                tap = in_namespace(star.switch.pid, partial(_open, interface))
                self._files[tap] = PcapFile(folder / f"{interface}.pcap")
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
        for tap in self._files:
            # struct tpacket_stats: packets, drops
            self.missed += struct.unpack("II", tap.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))[1]
        self._close()
        if self._failure is not None and error is None:
            raise SwitchReduceError(f"the capture is incomplete: {self._failure.strerror or self._failure}")

    def _run(self) -> None:
        try:
            while True:
                ready, _, _ = select.select(list(self._files), [], [], POLL_S)
                for tap in ready:
                    records = list(_receive(tap))
                    self._files[tap].write(records)
                    self.frames += len(records)
                if not ready and self._stop.is_set():  # what had arrived by then is written
                    return
        except OSError as error:
            self._failure = error

    def _close(self) -> None:
        for tap, file in self._files.items():
            tap.close()
            file.close()


def _receive(tap: socket.socket) -> Iterator[Record]:
    """The frames that wait, RECORDS_AT_ONCE at most."""
    with contextlib.suppress(BlockingIOError):
        for _ in range(RECORDS_AT_ONCE):
            frame, control, _, _ = tap.recvmsg(MAX_FRAME_BYTES, socket.CMSG_SPACE(TIMESPEC.size))
            if control:
                seconds, nanoseconds = TIMESPEC.unpack(control[0][2])
                yield seconds * 10**9 + nanoseconds, frame
            else:
                yield time.time_ns(), frame


def _open(interface: str) -> socket.socket:
    # Protocol 0 receives nothing until bind names one: so no frame of another interface gets in.
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    tap.setblocking(False)
    tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
    tap.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    tap.bind((interface, ETH_P_ALL))
    return tap
