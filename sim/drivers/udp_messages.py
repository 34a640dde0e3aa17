"""Many super-datagrams a system call: recvmmsg(2) and sendmmsg(2) with UDP_GRO and UDP_SEGMENT.

Python's own recvmsg and sendmsg cost 5 us each beside the kernel's work. The structures are those of
<sys/socket.h> on 64-bit little-endian Linux, as rows of int64:

    mmsghdr       name, its length, iovec, 1, control message, its length, flags, bytes received
    iovec         data, its length
    control       length, level | type << 32, segment size
    sockaddr_in   family | port << 16 | address << 32 (both in network order), 0
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket

import numpy as np
from numba import njit
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

# <linux/udp.h>; the socket module names neither.
UDP_SEGMENT = 103
UDP_GRO = 104

_MESSAGE_WORDS, _VECTOR_WORDS, _CONTROL_WORDS, NAME_WORDS = 8, 2, 3, 2
_WORD = 8  # bytes
_CONTROL_BYTES = _CONTROL_WORDS * _WORD
_NAME_BYTES = NAME_WORDS * _WORD
_HEADER_OF_CONTROL = 16  # bytes of cmsghdr

_LIBC = ctypes.CDLL(None, use_errno=True)
_POINTER, _INT = ctypes.c_void_p, ctypes.c_int
_receive = ctypes.CFUNCTYPE(_INT, _INT, _POINTER, _INT, _INT, _POINTER, use_errno=True)(("recvmmsg", _LIBC))
_send = ctypes.CFUNCTYPE(_INT, _INT, _POINTER, _INT, _INT, use_errno=True)(("sendmmsg", _LIBC))


def name_of(address: tuple[str, int]) -> int:
    """The first word of an IPv4 address's sockaddr_in."""
    family = socket.AF_INET.to_bytes(2, "little")
    octets = family + address[1].to_bytes(2, "big") + socket.inet_aton(address[0])
    return int.from_bytes(octets, "little", signed=True)


def address_of(name: int) -> tuple[str, int]:
    """(host, port) of the first word of a sockaddr_in."""
    octets = name.to_bytes(8, "little", signed=True)
    return socket.inet_ntoa(octets[4:]), int.from_bytes(octets[2:4], "big")


class Inbox:
    """Room for ``slots`` super-datagrams of up to ``slot_bytes``, side by side in ``data`` uint8[*].

    What ``receive`` brought: ``size`` int64[slots] in bytes, ``segment`` int64[slots] (that of its packets;
    the last one may be shorter) and ``name`` int64[slots] of the senders.
    """

    def __init__(self, slots: int, slot_bytes: int) -> None:
        self.data = np.empty(slots * slot_bytes, np.uint8)
        self.size, self.segment = np.zeros((2, slots), np.int64)
        self._names = np.zeros((slots, NAME_WORDS), np.int64)
        self.name = self._names[:, 0]
        self._control = np.zeros((slots, _CONTROL_WORDS), np.int64)
        self._vectors = np.zeros((slots, _VECTOR_WORDS), np.int64)
        self._messages = np.zeros((slots, _MESSAGE_WORDS), np.int64)
        steps = np.arange(slots)
        self._vectors[:, 0] = _address(self.data) + steps * slot_bytes
        self._vectors[:, 1] = slot_bytes
        self._messages[:, 0] = _address(self._names) + steps * _NAME_BYTES
        self._messages[:, 1] = _NAME_BYTES
        self._messages[:, 2] = _address(self._vectors) + steps * _VECTOR_WORDS * _WORD
        self._messages[:, 3] = 1
        self._messages[:, 4] = _address(self._control) + steps * _CONTROL_BYTES
        self._messages[:, 5] = _CONTROL_BYTES
        self._place = _address(self._messages)

    def receive(self, descriptor: int, limit: int) -> int:
        """Takes what waits in a socket, at most ``limit`` super-datagrams; how many. Never blocks."""
        while True:
            count = int(_receive(descriptor, self._place, limit, socket.MSG_DONTWAIT, None))
            if count >= 0:
                _read(self._messages, self._control, count, self.size, self.segment)
                return count
            fault = ctypes.get_errno()
            if fault == errno.EAGAIN:
                return 0
            if fault not in (errno.ECONNREFUSED, errno.EINTR):  # an earlier datagram's peer is gone
                raise OSError(fault, os.strerror(fault))


class Outbox:
    """Sends runs of packets, each run as one super-datagram."""

    def __init__(self) -> None:
        self._messages = np.zeros((0, _MESSAGE_WORDS), np.int64)
        self._vectors = np.zeros((0, _VECTOR_WORDS), np.int64)
        self._control = np.zeros((0, _CONTROL_WORDS), np.int64)
        self._places = np.zeros(3, np.int64)

    def fill(self, runs: Numbers, count: int, payloads: int, names: int) -> None:
        """Prepares the first ``count`` of ``runs`` int64[5, *]: port, place and size in the bytes at address
        ``payloads``, segment size, segments. ``names`` is the address of a sockaddr_in a port."""
        if len(self._messages) < count:
            self._messages = np.zeros((2 * count, _MESSAGE_WORDS), np.int64)
            self._vectors = np.zeros((2 * count, _VECTOR_WORDS), np.int64)
            self._control = np.zeros((2 * count, _CONTROL_WORDS), np.int64)
            self._places[:] = _address(self._messages), _address(self._vectors), _address(self._control)
        _write(self._messages, self._vectors, self._control, self._places, runs, count, payloads, names)

    def send(self, descriptor: int, first: int, count: int) -> int:
        """Sends prepared runs, from number ``first`` on; how many the socket took, 0 if none."""
        place = int(self._places[0]) + first * _MESSAGE_WORDS * _WORD
        return max(0, int(_send(descriptor, place, count, socket.MSG_DONTWAIT)))


def _address(array: Numbers | NDArray[np.uint8]) -> int:
    return int(array.__array_interface__["data"][0])


@njit(cache=True, nogil=True)
def _read(messages: Numbers, control: Numbers, count: int, size: Numbers, segment: Numbers) -> None:
    for k in range(count):
        size[k] = messages[k, 7] & 0xFFFFFFFF
        segment[k] = size[k]
        if messages[k, 5] >= _HEADER_OF_CONTROL + 4:
            segment[k] = control[k, 2] & 0xFFFFFFFF
        messages[k, 5] = _CONTROL_BYTES


@njit(cache=True, nogil=True)
def _write(
    messages: Numbers, vectors: Numbers, control: Numbers, places: Numbers,
    runs: Numbers, count: int, payloads: int, names: int,
) -> None:  # fmt: skip
    for k in range(count):
        vectors[k, 0] = payloads + runs[1, k]
        vectors[k, 1] = runs[2, k]
        messages[k, 0] = names + _NAME_BYTES * runs[0, k]
        messages[k, 1] = _NAME_BYTES
        messages[k, 2] = places[1] + _VECTOR_WORDS * _WORD * k
        messages[k, 3] = 1
        cut = runs[4, k] > 1
        messages[k, 4] = places[2] + _CONTROL_BYTES * k if cut else 0
        messages[k, 5] = _CONTROL_BYTES if cut else 0
        control[k, 0] = _HEADER_OF_CONTROL + 2  # the segment size has 16 bits
        control[k, 1] = socket.SOL_UDP | UDP_SEGMENT << 32
        control[k, 2] = runs[3, k]


def compile_kernels() -> None:
    """Compiles the kernels or loads them from numba's cache, so that no packet has to wait for that."""
    rows, numbers = np.zeros((1, 8), np.int64), np.zeros(1, np.int64)
    _read(rows, rows, 0, numbers, numbers)
    _write(rows, rows, rows, numbers, rows, 0, 0, 0)
