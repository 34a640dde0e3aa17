"""BMv2's simple_switch_grpc as a process whose ports are a gRPC stream, so that frames of any length get in
and out, without interfaces and without root."""

from __future__ import annotations

import queue
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator

import grpc

BINARY = "simple_switch_grpc"
CPU_PORT = 510
PATIENCE_S = 10.0

Out = tuple[int, bytes]  # port, frame


def available() -> bool:
    return shutil.which(BINARY) is not None


class Bmv2:
    """A switch without a program. `address` is where its P4Runtime server listens."""

    def __init__(self) -> None:
        self.address, self._packets_address = _free_addresses(2)
        self._process = subprocess.Popen(
            [
                *(BINARY, "--no-p4", "--device-id", "0", "--", "--cpu-port", str(CPU_PORT)),
                *("--grpc-server-addr", self.address, "--dp-grpc-server-addr", self._packets_address),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._incoming: queue.SimpleQueue[Out | None] = queue.SimpleQueue()
        self._left: list[Out] = []
        self._changed = threading.Condition()
        self._channel = grpc.insecure_channel(self._packets_address)

    def wait_until_ready(self) -> None:
        """Returns when the P4Runtime server answers."""
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                host, _, port = self.address.rpartition(":")
                socket.create_connection((host, int(port)), 1).close()
                return
            except OSError:
                if time.monotonic() > end or self._process.poll() is not None:
                    raise
                time.sleep(0.02)

    def open_ports(self) -> None:
        """Connects the ports; call it when the switch has a program."""
        stream = self._channel.stream_stream(
            "/p4.bm.DataplaneInterface/PacketStream",
            request_serializer=_encode_packet,
            response_deserializer=_decode_packet,
        )
        self._stream = stream(iter(self._incoming.get, None), wait_for_ready=True)
        threading.Thread(target=self._receive, daemon=True).start()

    def send(self, port: int, frame: bytes) -> None:
        """`frame` is not empty: BMv2 passes over an empty one."""
        self._incoming.put((port, frame))

    def add_packet_in(self, frame: bytes) -> None:
        """Counts a packet-in among what left the switch."""
        with self._changed:
            self._left.append((CPU_PORT, frame))
            self._changed.notify()

    def take(self, count: int, patience_s: float = PATIENCE_S) -> list[Out]:
        """What has left the switch, once these are at least `count` frames or time is up."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._left) >= count, patience_s)
            left, self._left = self._left, []
        return left

    def close(self) -> None:
        self._incoming.put(None)
        self._channel.close()
        self._process.kill()
        self._process.wait()

    def _receive(self) -> None:
        try:
            for packet in self._stream:
                with self._changed:
                    self._left.append(packet)
                    self._changed.notify()
        except grpc.RpcError:
            pass  # the switch is gone; take() comes back with less than was asked for


def _free_addresses(count: int) -> list[str]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return addresses


# The stream's messages have four fields, of which two matter here: port = 3 (uint32), packet = 4 (bytes).
# Encoding: https://protobuf.dev/programming-guides/encoding/

_PORT, _PACKET = 3 << 3, 4 << 3 | 2


def _encode_packet(packet: Out) -> bytes:
    port, frame = packet
    return bytes([_PORT]) + _varint(port) + bytes([_PACKET]) + _varint(len(frame)) + frame


def _decode_packet(message: bytes) -> Out:
    port, frame, at = 0, b"", 0
    while at < len(message):
        tag, at = message[at], at + 1
        value, at = _read_varint(message, at)
        if tag == _PORT:
            port = value
        elif tag & 7 == 2:
            frame, at = message[at : at + value], at + value
    return port, frame


def _varint(value: int) -> bytes:
    return bytes(_septets(value))


def _septets(value: int) -> Iterator[int]:
    while value >= 0x80:
        yield value & 0x7F | 0x80
        value >>= 7
    yield value


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
