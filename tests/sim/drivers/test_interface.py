"""The interface driver on a veth pair in a network namespace of the test's own; needs root."""

from __future__ import annotations

import ctypes
import os
import select
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scapy.all import Dot1Q, Ether, Raw, RawPcapReader

from switchreduce.errors import UsageError
from switchreduce.sim.drivers import DataPlane, InterfaceDriver, PortCapture
from switchreduce.sim.drivers.dataplane import BATCH_BYTES, BATCH_FRAMES
from switchreduce.sim.target import Frames
from tests.waiting import eventually

SWITCH_SIDE, HOST_SIDE = "sr-switch", "sr-host"
ETHER_TYPE = 0x88B5  # local experiments (IEEE 802)
CLONE_NEWNET = 0x40000000  # <linux/sched.h>
HOST, SWITCH = "02:00:00:00:00:01", "02:00:00:00:00:02"

libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def host() -> Iterator[socket.socket]:
    """A raw socket on one end of a veth pair, whose other end is SWITCH_SIDE.

    Only this thread enters the namespace; a socket stays in the one it was made in.
    """
    outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    if libc.unshare(CLONE_NEWNET):
        os.close(outside)
        pytest.skip("needs root for a veth pair in a network namespace")
    try:
        for command in (
            f"ip link add {SWITCH_SIDE} type veth peer name {HOST_SIDE}",
            # no IPv6, or the kernel's own packets for it would be among the frames
            f"ip link set {SWITCH_SIDE} addrgenmode none",
            f"ip link set {HOST_SIDE} addrgenmode none",
            f"ip link set {SWITCH_SIDE} up",
            f"ip link set {HOST_SIDE} up",
        ):
            subprocess.run(command.split(), check=True)
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as raw:
            raw.bind((HOST_SIDE, ETHER_TYPE))
            raw.settimeout(5)
            yield raw
    except FileNotFoundError:
        pytest.skip("needs iproute2's ip for a veth pair")
    finally:
        libc.setns(outside, CLONE_NEWNET)
        os.close(outside)


def frame(payload: bytes, source: str = HOST, destination: str = SWITCH) -> bytes:
    return bytes(Ether(src=source, dst=destination, type=ETHER_TYPE) / Raw(payload))


def test_frames_go_in_and_out_unchanged(host: socket.socket, run_dataplane: Callable[..., DataPlane]) -> None:
    driver = InterfaceDriver(1, SWITCH_SIDE)
    run_dataplane(driver)
    sizes = [46, 100, 1500]
    for size in sizes:
        host.send(frame(bytes(size)))
        # The program swaps the addresses; everything else is as it was.
        assert host.recv(65536) == frame(bytes(size), source=SWITCH, destination=HOST)
    eventually(lambda: (driver.counters.received, driver.counters.sent) == (3, 3))


def test_a_vlan_tag_survives(host: socket.socket, run_dataplane: Callable[..., DataPlane]) -> None:
    run_dataplane(InterfaceDriver(1, SWITCH_SIDE))
    driver = InterfaceDriver(2, HOST_SIDE)
    tagged = Ether(src=HOST, dst=SWITCH) / Dot1Q(vlan=42, prio=3, type=ETHER_TYPE) / Raw(bytes(60))
    host.send(bytes(tagged))
    frames = Frames.allocate(BATCH_FRAMES, BATCH_BYTES)
    select.select([driver.socket], [], [], 5)
    driver.receive(frames)
    received = Ether(frames.data[frames.offset[0] : frames.offset[0] + frames.length[0]].tobytes())
    tagged.src, tagged.dst = SWITCH, HOST
    assert bytes(received) == bytes(tagged)
    driver.close()


def test_both_ways_are_captured(
    host: socket.socket, run_dataplane: Callable[..., DataPlane], tmp_path: Path
) -> None:
    capture = PortCapture(tmp_path, {1: SWITCH_SIDE}, print)
    run_dataplane(InterfaceDriver(1, SWITCH_SIDE), capture=capture)
    expected = []
    for number in range(3):
        host.send(frame(bytes([number]) * 60))
        expected += [frame(bytes([number]) * 60), host.recv(65536)]
    assert [bytes(each) for each, _ in RawPcapReader(str(tmp_path / f"{SWITCH_SIDE}.pcap"))] == expected
    capture.close()


def test_a_frame_longer_than_the_mtu_is_dropped_and_explained(
    host: socket.socket, run_dataplane: Callable[..., DataPlane]
) -> None:
    driver = InterfaceDriver(1, SWITCH_SIDE)
    subprocess.run(f"ip link set {HOST_SIDE} mtu 9000".split(), check=True)
    subprocess.run(f"ip link set {SWITCH_SIDE} mtu 9000".split(), check=True)
    run_dataplane(driver)
    host.send(frame(bytes(8000)))
    host.send(frame(b"small" * 20))
    assert host.recv(65536) == frame(b"small" * 20, source=SWITCH, destination=HOST)
    assert driver.counters.oversized == 1
    assert "segmentation offload" in driver.summary()


def test_a_missing_interface_is_one_clear_line() -> None:
    with pytest.raises(UsageError, match="no network interface 'no-such-if'"):
        InterfaceDriver(1, "no-such-if")
