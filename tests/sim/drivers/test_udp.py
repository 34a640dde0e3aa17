"""The UDP driver on real sockets, around a switch that sends every frame back."""

from __future__ import annotations

import ctypes
import os
import select
import socket
import struct
import subprocess
from collections.abc import Callable

import pytest
from scapy.all import IP, UDP, Ether

from switchreduce.errors import UsageError
from switchreduce.sim.drivers import DataPlane, Impairment, Rates, UdpDriver
from switchreduce.sim.drivers.dataplane import BATCH_BYTES, BATCH_FRAMES
from switchreduce.sim.drivers.udp import UDP_GRO, UDP_SEGMENT
from switchreduce.sim.target import Frames
from tests.waiting import eventually

CLONE_NEWNET = 0x40000000  # <linux/sched.h>

RunDataPlane = Callable[..., DataPlane]


class Peer:
    """A peer's socket."""

    def __init__(self, driver: UdpDriver) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect(driver.address)
        self.socket.settimeout(5)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def receive(self, count: int) -> list[bytes]:
        return [self.socket.recv(65536) for _ in range(count)]

    def receive_until_quiet(self, seconds: float = 0.5) -> list[bytes]:
        self.socket.settimeout(seconds)
        received = []
        while True:
            try:
                received.append(self.socket.recv(65536))
            except TimeoutError:
                return received


def without_offload(driver: UdpDriver) -> UdpDriver:
    """The driver as on a kernel without UDP_SEGMENT and UDP_GRO."""
    driver.socket.setsockopt(socket.SOL_UDP, UDP_GRO, 0)
    driver.segmentation = False
    return driver


@pytest.fixture(params=["offload", "plain"])
def driver(request: pytest.FixtureRequest) -> UdpDriver:
    made = UdpDriver(("127.0.0.1", 0), reserved=(510, 511))
    return made if request.param == "offload" else without_offload(made)


def test_payloads_of_all_sizes_come_back_to_their_sender(
    driver: UdpDriver, run_dataplane: RunDataPlane
) -> None:
    run_dataplane(driver)
    with Peer(driver) as one, Peer(driver) as other:
        sizes = [0, 1, 17, 18, 1024, 1472, 8246, 65507]
        for size in sizes:
            one.socket.send(b"1" * size)
            other.socket.send(b"2" * size)
        assert sorted(one.receive(len(sizes)), key=len) == [b"1" * size for size in sizes]
        assert sorted(other.receive(len(sizes)), key=len) == [b"2" * size for size in sizes]
    eventually(lambda: driver.counters.sent == 2 * len(sizes))
    assert driver.counters.received == 2 * len(sizes)


def test_a_super_datagram_comes_back_packet_by_packet_in_order(
    driver: UdpDriver, run_dataplane: RunDataPlane
) -> None:
    run_dataplane(driver)
    payloads = [bytes([i]) * 1100 for i in range(50)] + [b"short"]
    with Peer(driver) as peer:
        try:
            control = [(socket.SOL_UDP, UDP_SEGMENT, struct.pack("H", 1100))]
            peer.socket.sendmsg([b"".join(payloads)], control)
        except OSError:
            pytest.skip("this kernel has no UDP_SEGMENT")
        assert peer.receive(51) == payloads


def test_jumbo_payloads_come_back_in_order(driver: UdpDriver, run_dataplane: RunDataPlane) -> None:
    run_dataplane(driver)
    with Peer(driver) as peer:
        for i in range(10):  # what a receive buffer of the default size holds at once
            peer.socket.send(bytes([i]) * 8246)
        assert peer.receive(10) == [bytes([i]) * 8246 for i in range(10)]


def test_payloads_larger_than_the_mtu_come_back_too(run_dataplane: RunDataPlane) -> None:
    """The kernel refuses to cut a super-datagram into segments that the device cannot carry."""
    outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        os.close(outside)
        pytest.skip("needs root for a loopback device of its own")
    try:
        subprocess.run(["ip", "link", "set", "lo", "mtu", "1500", "up"], check=True)
        driver = UdpDriver(("127.0.0.1", 0))
        peer = Peer(driver)
    finally:
        libc.setns(outside, CLONE_NEWNET)
        os.close(outside)
    with peer:
        for i in range(5):
            peer.socket.send(bytes([i]) * 8246)
        run_dataplane(driver)  # finds all five waiting, and has them in one batch
        assert peer.receive(5) == [bytes([i]) * 8246 for i in range(5)]
    assert driver.counters.send_failed == 0


def test_the_program_sees_the_advertised_address() -> None:
    driver = UdpDriver(("0.0.0.0", 0), advertised=("10.0.0.1", 21330))
    frames = Frames.allocate(BATCH_FRAMES, BATCH_BYTES)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.connect(("127.0.0.1", driver.address[1]))
        peer.send(b"payload")
        select.select([driver.socket], [], [], 5)
        driver.receive(frames)
        packet = Ether(frames.data[: frames.length[0]].tobytes())
        assert (packet[IP].src, packet[UDP].sport) == peer.getsockname()
    driver.close()
    assert frames.count == 1
    assert (packet[IP].dst, packet[UDP].dport) == ("10.0.0.1", 21330)
    assert bytes(packet[UDP].payload) == b"payload"


def test_loss_in_both_directions_is_counted(run_dataplane: RunDataPlane) -> None:
    impairment = Impairment(Rates(loss=0.3), seed=1)
    driver = UdpDriver(("127.0.0.1", 0), impairment=impairment)
    run_dataplane(driver)
    with Peer(driver) as peer:
        for i in range(300):
            peer.socket.send(struct.pack("!I", i))
        received = [struct.unpack("!I", each)[0] for each in peer.receive_until_quiet()]
    assert received == sorted(set(received))
    assert driver.counters.received == 300
    assert impairment.inward.lost > 0
    assert impairment.outward.lost > 0
    assert len(received) == 300 - impairment.inward.lost - impairment.outward.lost
    eventually(lambda: driver.counters.sent == len(received))


def test_duplicates_and_reordering(run_dataplane: RunDataPlane) -> None:
    impairment = Impairment(Rates(duplicate=0.2, reorder=0.2), seed=1)
    driver = UdpDriver(("127.0.0.1", 0), impairment=impairment)
    run_dataplane(driver)
    with Peer(driver) as peer:
        payloads = [struct.pack("!I", i) for i in range(60)]
        control = [(socket.SOL_UDP, UDP_SEGMENT, struct.pack("H", 4))]
        peer.socket.sendmsg([b"".join(payloads)], control)
        received = peer.receive_until_quiet()
    assert set(received) == set(payloads)
    assert len(received) > 60
    assert received != sorted(received)


def test_without_a_program_packets_are_lost_and_counted(
    driver: UdpDriver, run_dataplane: RunDataPlane
) -> None:
    dataplane = run_dataplane(driver, program=False)
    with Peer(driver) as peer:
        peer.socket.send(b"anyone?")
        eventually(lambda: dataplane.counters.no_program == 1)


def test_a_peer_that_went_away_does_no_harm(driver: UdpDriver, run_dataplane: RunDataPlane) -> None:
    run_dataplane(driver)
    for _ in range(20):
        with Peer(driver) as peer:
            peer.socket.send(b"gone before the answer")
    with Peer(driver) as peer:
        peer.socket.send(b"still there?")
        assert peer.receive(1) == [b"still there?"]


def test_when_all_ports_are_taken_a_new_peer_is_refused_and_counted(run_dataplane: RunDataPlane) -> None:
    driver = UdpDriver(("127.0.0.1", 0), reserved=range(2, 512))
    run_dataplane(driver)
    with Peer(driver) as first, Peer(driver) as second:
        first.socket.send(b"1")
        assert first.receive(1) == [b"1"]
        second.socket.send(b"2")
        eventually(lambda: driver.counters.no_port_free == 1)
        assert second.receive_until_quiet(0.1) == []


def test_a_taken_port_is_one_clear_line() -> None:
    driver = UdpDriver(("127.0.0.1", 0))
    with pytest.raises(UsageError, match=rf"udp 127.0.0.1:{driver.address[1]}: .*in use.*--udp"):
        UdpDriver(driver.address)
    with pytest.raises(UsageError, match="@IP:PORT"):
        UdpDriver(("0.0.0.0", 0))
    with pytest.raises(UsageError, match="cannot listen"):
        UdpDriver(("no.such.host.invalid", 1))
    driver.close()
