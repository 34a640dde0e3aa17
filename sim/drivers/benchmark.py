"""What the UDP driver costs: packets a second through it, against a plain echo of the same packets.

    python -m switchreduce.sim.drivers.benchmark PROGRAM.json

PROGRAM.json is a compiled program that sends every frame back on its port. Both servers run in a process of
their own, one after the other, and talk to the same client: UDP_SEGMENT and UDP_GRO, a window of
super-datagrams. CPU seconds are the server's own, so that the ratio says something on a busy machine too.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from switchreduce.sim.drivers import DataPlane, UdpDriver
from switchreduce.sim.drivers.udp import SO_RCVBUFFORCE, SOCKET_BUFFER_BYTES, UDP_GRO, UDP_SEGMENT
from switchreduce.sim.drivers.udp_frames import MAX_PAYLOAD_BYTES, MAX_SEGMENTS
from switchreduce.sim.target import Switch, load_program

PAYLOAD_BYTES = (64, 256, 1056, 8224)
SECONDS = 3.0
WINDOW = 8  # super-datagrams in flight


@dataclass(frozen=True)
class Cost:
    """Of one server: packets a second, and its CPU time per packet in nanoseconds."""

    rate: float
    cpu_ns: float


def serve_plain(control: Connection) -> None:
    """Sends each super-datagram back as it came."""
    with _open_socket() as udp:
        udp.bind(("127.0.0.1", 0))
        udp.settimeout(0.1)
        buffer = memoryview(bytearray(65536))

        def run(stop: threading.Event) -> None:
            while not stop.is_set():
                with contextlib.suppress(TimeoutError):
                    size, ancillary, _, peer = udp.recvmsg_into([buffer], socket.CMSG_SPACE(4))
                    segment = struct.unpack("i", ancillary[0][2][:4])[0] if ancillary else size
                    cut = [(socket.SOL_UDP, UDP_SEGMENT, struct.pack("H", segment))] if segment < size else []
                    udp.sendmsg([buffer[:size]], cut, 0, peer)

        _serve(control, udp.getsockname(), run)


def serve_switch(control: Connection, program: Path) -> None:
    """The switch on the UDP driver."""
    driver = UdpDriver(("127.0.0.1", 0))
    dataplane = DataPlane([driver])
    dataplane.install(Switch(load_program(program)))
    _serve(control, driver.address, dataplane.run)
    dataplane.close()


def _serve(control: Connection, address: tuple[str, int], run: Callable[[threading.Event], None]) -> None:
    """Runs a server in a thread; tells its CPU time whenever asked, until the other end closes."""
    stop = threading.Event()
    server = threading.Thread(target=run, args=(stop,))
    server.start()
    control.send(address)
    with contextlib.suppress(EOFError):
        while control.recv():
            control.send(time.process_time())
    stop.set()
    server.join()


def measure(server: Callable[..., None], arguments: tuple[object, ...], payload_bytes: int) -> Cost:
    """Drives one server with payloads of one size."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=server, args=(theirs, *arguments))
    process.start()
    address = ours.recv()
    with _open_socket() as client:
        client.connect(address)
        client.settimeout(2)
        _exchange(client, payload_bytes, 0.3)  # to fill caches and compile
        ours.send(True)
        cpu = ours.recv()
        packets, seconds = _exchange(client, payload_bytes, SECONDS)
        ours.send(True)
        cpu = ours.recv() - cpu
    ours.send(False)
    process.join()
    return Cost(packets / seconds, cpu / packets * 1e9)


def _exchange(client: socket.socket, payload_bytes: int, seconds: float) -> tuple[int, float]:
    """Keeps a window of super-datagrams in flight; (packets that came back, seconds)."""
    per_datagram = min(MAX_SEGMENTS, MAX_PAYLOAD_BYTES // payload_bytes)
    datagram = bytes(per_datagram * payload_bytes)
    cut = [(socket.SOL_UDP, UDP_SEGMENT, struct.pack("H", payload_bytes))]
    buffer = bytearray(65536)
    start = time.perf_counter()
    received = in_flight = 0
    while in_flight or time.perf_counter() < start + seconds:
        while in_flight < WINDOW * per_datagram and time.perf_counter() < start + seconds:
            client.sendmsg([datagram], cut)
            in_flight += per_datagram
        count = client.recvmsg_into([buffer], socket.CMSG_SPACE(4))[0] // payload_bytes
        received += count
        in_flight -= count
    return received, time.perf_counter() - start


def _open_socket() -> socket.socket:
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.setsockopt(socket.SOL_UDP, UDP_GRO, 1)
    with contextlib.suppress(PermissionError):
        udp.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, SOCKET_BUFFER_BYTES)
    return udp


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", type=Path)
    program = parser.parse_args().program
    print("payload  echo pkt/s  driver pkt/s  ratio   echo CPU ns/pkt  driver CPU ns/pkt")
    for size in PAYLOAD_BYTES:
        echo, driver = measure(serve_plain, (), size), measure(serve_switch, (program,), size)
        print(
            f"{size:7}  {echo.rate:10,.0f}  {driver.rate:12,.0f}  {driver.rate / echo.rate:5.2f}"
            f"  {echo.cpu_ns:16,.0f}  {driver.cpu_ns:17,.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
