"""Calls from this process in another network namespace, and the settings of interfaces there."""

from __future__ import annotations

import array
import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from switchreduce.errors import SwitchReduceError

CLONE_NEWNET = 0x40000000  # <linux/sched.h>
SIOCETHTOOL = 0x8946  # <linux/sockios.h>
# <linux/ethtool.h>: struct ethtool_value commands, in the order in which one allows the other
OFFLOADS = {
    "receive merging": 0x2C,  # ETHTOOL_SGRO
    "UDP and generic segmentation": 0x24,  # ETHTOOL_SGSO
    "TCP segmentation": 0x1F,  # ETHTOOL_STSO
    "transmit checksums": 0x17,  # ETHTOOL_STXCSUM
}

Result = TypeVar("Result")
libc = ctypes.CDLL(None, use_errno=True)


def in_namespace(pid: int, function: Callable[[], Result]) -> Result:
    """What `function` returns in the network namespace of process `pid`.

    It runs in a thread of its own, as a namespace belongs to a thread; a socket stays in the one it was made
    in. Raises what `function` raises.
    """

    def enter_and_call() -> Result:
        with open(f"/proc/{pid}/ns/net") as namespace:
            if libc.setns(namespace.fileno(), CLONE_NEWNET):
                number = ctypes.get_errno()
                raise SwitchReduceError(f"cannot enter a network namespace: {os.strerror(number)}")
        return function()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(enter_and_call).result()


def disable_offloads(interfaces: Iterable[str]) -> None:
    """Make every frame on `interfaces` what it would be on a wire: at most one MTU, with its checksum.

    A veth pair hands segments of up to 64 KiB without checksums from one end to the other, and a switch that
    reads raw frames gets them as they are. For the calling thread's namespace. Raises SwitchReduceError.
    """
    for what, command in OFFLOADS.items():
        _set_offload(interfaces, what, command, False)


def enable_offloads(interfaces: Iterable[str]) -> None:
    """Undo `disable_offloads`."""
    for what, command in reversed(OFFLOADS.items()):
        _set_offload(interfaces, what, command, True)


def _set_offload(interfaces: Iterable[str], what: str, command: int, on: bool) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for interface in interfaces:
            value = array.array("I", [command, on])  # struct ethtool_value
            # struct ifreq: the name, then a union of 24 bytes that here holds a pointer
            request = struct.pack("16sP16x", interface.encode(), value.buffer_info()[0])
            try:
                fcntl.ioctl(any_socket, SIOCETHTOOL, request)
            except OSError as error:
                raise SwitchReduceError(
                    f"cannot turn the offload of {what} on {interface} {'on' if on else 'off'}: "
                    f"{error.strerror}"
                ) from error


def disable_ipv6() -> None:
    """Keep the kernel's own packets for IPv6 off the links; for the calling thread's namespace."""
    for name in ("all", "default"):
        setting = Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6")
        if setting.exists():
            setting.write_text("1")
