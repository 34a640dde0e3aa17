"""A program of its own: sends every UDP super-datagram back as it came, with UDP_GRO and UDP_SEGMENT.

What the kernel and Python's socket calls cost without a switch, so it imports nothing of one.
"""

from __future__ import annotations

import contextlib
import socket
import struct

UDP_SEGMENT, UDP_GRO = 103, 104  # <linux/udp.h>
SO_RCVBUFFORCE = 33  # <asm-generic/socket.h>
BUFFER_BYTES = 32 * 2**20


def main() -> None:
    """Runs until it is stopped from outside."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        with contextlib.suppress(PermissionError):
            udp.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        udp.setsockopt(socket.SOL_UDP, UDP_GRO, 1)
        udp.bind(("127.0.0.1", 0))
        print(f"echo on udp {':'.join(map(str, udp.getsockname()))}", flush=True)
        buffer = memoryview(bytearray(65536))
        while True:
            size, control, _, peer = udp.recvmsg_into([buffer], socket.CMSG_SPACE(4))
            segment = struct.unpack("i", control[0][2][:4])[0] if control else size
            cut = [(socket.SOL_UDP, UDP_SEGMENT, struct.pack("H", segment))] if segment < size else []
            udp.sendmsg([buffer[:size]], cut, 0, peer)


if __name__ == "__main__":
    main()
