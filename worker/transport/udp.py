"""The socket under the engine: one connected UDP socket and the loop that drives the engine over it."""

from __future__ import annotations

import errno
import select
import socket
import struct
import time
from collections.abc import Callable

import numpy as np

from switchreduce.errors import SwitchError
from switchreduce.worker.transport.engine import MAX_BURST, SlotEngine

# Linux's include/uapi/linux/udp.h; Python names neither.
SOL_UDP = 17
UDP_SEGMENT = 103
UDP_GRO = 104

# From include/uapi/asm-generic/socket.h: like SO_SNDBUF and SO_RCVBUF, but past the system's limit, for root.
SO_SNDBUFFORCE = 32
SO_RCVBUFFORCE = 33

MAX_DATAGRAM = 65_507  # bytes of UDP payload in one IPv4 packet, a segmented send included
SOCKET_BUFFER = 8 << 20  # bytes asked of the kernel, which grants what its limits allow
RECEIVES_A_ROUND = 16  # receives before sending again, so that neither side starves
# How long, in s, errors that may pass count as lost packets, from the first in a row with nothing received in
# between: a switch that is being restarted (ICMP "port unreachable"), or a link of this host that is down
# for a moment, which takes its routes along.
PATIENCE = {
    errno.ECONNREFUSED: 2.0,
    errno.ENETUNREACH: 10.0,
    errno.ENETDOWN: 10.0,
    errno.EHOSTUNREACH: 10.0,
}
LEAST_ERRORS = 8  # in a row, as one may come long after its cause


class UdpLink:
    """A connected UDP socket that sends and receives many datagrams a call where the kernel can.

    `offload` says whether to try UDP_SEGMENT and UDP_GRO (Linux 4.18 and 5.0); without them each datagram
    costs a call.
    """

    def __init__(self, address: tuple[str, int], offload: bool = True) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self.socket.setblocking(False)
            self._enlarge(SO_RCVBUFFORCE, socket.SO_RCVBUF)
            self._enlarge(SO_SNDBUFFORCE, socket.SO_SNDBUF)
            self.socket.connect(address)
        except OSError as error:
            self.socket.close()
            raise SwitchError(
                f"cannot send to {address[0]}:{address[1]}: {error.strerror or error}"
            ) from error
        self.segmenting = offload and self._supports(UDP_SEGMENT, 0)
        self.coalescing = offload and self._supports(UDP_GRO, 1)
        self.buffer = np.zeros(1 << 16, np.uint8)
        self._errors = 0  # in a row, that may pass
        self._errors_since = 0.0
        self._control_space = socket.CMSG_SPACE(4)

    def _enlarge(self, forced: int, polite: int) -> None:
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, forced, SOCKET_BUFFER)
        except OSError:
            self.socket.setsockopt(socket.SOL_SOCKET, polite, SOCKET_BUFFER)

    def _supports(self, option: int, value: int) -> bool:
        try:
            self.socket.setsockopt(SOL_UDP, option, value)
        except OSError:
            return False
        return True

    def send(self, datagrams: np.ndarray) -> None:
        """Send a structured array of datagrams, in order.

        What a full buffer refuses is dropped, as a network would; the engine sends it again. Raises
        SwitchError when the datagrams can never arrive.
        """
        size = datagrams.dtype.itemsize
        data = datagrams.view(np.uint8).reshape(-1).data
        step = min(MAX_DATAGRAM // size, MAX_BURST) if self.segmenting else 1
        for first in range(0, datagrams.shape[0], step):
            part = data[first * size : (first + step) * size]
            try:
                if len(part) > size:
                    self.socket.sendmsg([part], [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", size))])
                else:
                    self.socket.send(part)
            except OSError as error:
                if error.errno in (errno.EIO, errno.EINVAL) and len(part) > size:
                    self.segmenting = False  # the device cannot checksum for us: send one at a time
                    self.send(datagrams[first:])
                    return
                self._tolerate(error, size)

    def _tolerate(self, error: OSError, size: int) -> None:
        if error.errno in (errno.EAGAIN, errno.ENOBUFS, errno.EINTR):
            return
        host, port = self.address
        if error.errno in PATIENCE:
            now = time.monotonic()
            if self._errors == 0:
                self._errors_since = now
            self._errors += 1
            if self._errors < LEAST_ERRORS or now - self._errors_since < PATIENCE[error.errno]:
                return
        if error.errno == errno.ECONNREFUSED:
            raise SwitchError(f"nothing listens at {host}:{port}: is the switch running?") from error
        if error.errno == errno.EMSGSIZE:
            raise SwitchError(
                f"a packet of {size} bytes does not fit the path to {host}:{port}: raise the MTU or load a "
                "build with fewer lanes"
            ) from error
        raise SwitchError(f"cannot send to {host}:{port}: {error.strerror or error}") from error

    def receive(self) -> tuple[int, int]:
        """One receive into ``buffer``: (bytes, bytes per datagram), or (0, 0) when nothing waits."""
        try:
            if not self.coalescing:
                length = self.socket.recv_into(self.buffer.data)
                self._errors = 0
                return length, length
            length, control, _, _ = self.socket.recvmsg_into([self.buffer.data], self._control_space)
        except OSError as error:
            self._tolerate(error, 0)
            return 0, 0
        self._errors = 0
        for level, kind, data in control:
            if level == SOL_UDP and kind == UDP_GRO:
                return length, struct.unpack("=i", data[:4])[0]
        return length, length

    def close(self) -> None:
        self.socket.close()


def drive(
    engine: SlotEngine,
    link: UdpLink,
    finished: Callable[[], bool],
    interrupt: int | None = None,
    on_interrupt: Callable[[], None] | None = None,
    stall_timeout: float = 30.0,
    on_stall: Callable[[], None] | None = None,
) -> None:
    """Run `engine` over `link` until `finished()`.

    `interrupt` is a file descriptor that becomes readable when the control plane has news; then, and never
    in between, `on_interrupt` runs and may raise. `on_stall` runs, and should raise, after `stall_timeout`
    seconds without a new result.
    """
    poller = select.poll()
    poller.register(link.socket, select.POLLIN)
    if interrupt is not None:
        poller.register(interrupt, select.POLLIN)
    results = engine.stats.results
    progress = time.monotonic()
    while not finished():
        now = time.monotonic()
        while (datagrams := engine.datagrams_to_send(now)).size:
            link.send(datagrams)
        deadline = engine.next_deadline()
        timeout = stall_timeout if deadline is None else max(0.0, deadline - time.monotonic())
        timeout = min(timeout, max(0.0, progress + stall_timeout - time.monotonic()))
        for descriptor, _ in poller.poll(-(-timeout * 1000 // 1)):
            if descriptor == interrupt and on_interrupt is not None:
                on_interrupt()
        for _ in range(RECEIVES_A_ROUND):
            length, size = link.receive()
            if length == 0:
                break
            engine.receive_datagrams(link.buffer, length, size, time.monotonic())
        now = time.monotonic()
        if deadline is not None and deadline <= now:
            engine.handle_timer(now)  # which looks itself whether what just arrived has moved the deadline
        if engine.stats.results != results:
            results = engine.stats.results
            progress = now
        elif now - progress >= stall_timeout:
            if on_stall is not None:
                on_stall()
            host, port = link.address
            raise SwitchError(f"no result from the switch at {host}:{port} for {stall_timeout:g} s")
