"""What `switchreduce switch --pcap` leaves in its folder, read back through the Scapy layer."""

from __future__ import annotations

import resource
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.utils import RawPcapReader, rdpcap

from switchreduce.p4.builds import constants, load_build
from switchreduce.p4.scapy_layer import SwitchReduce
from switchreduce.sim.drivers import DataPlane, PortCapture, UdpDriver
from switchreduce.sim.target import Frames
from tests.cluster import raise_errors, run_ranks, running_cluster
from tests.waiting import eventually

RANKS = 3
HELLO, CONTRIBUTION, RESULT = constants.KIND_HELLO, constants.KIND_CONTRIBUTION, constants.KIND_RESULT

COMBINE = {
    constants.OP_SUM: lambda lanes: lanes.sum(axis=0, dtype=np.uint32),
    constants.OP_OR: np.bitwise_or.reduce,
    constants.OP_MAX: lambda lanes: lanes.max(axis=0),
}


def batch(*frames: tuple[int, bytes]) -> Frames:
    made = Frames.allocate(len(frames), sum(len(frame) for _, frame in frames))
    for port, frame in frames:
        made.append(port, frame)
    return made


def frames_in(path: Path) -> list[bytes]:
    return [frame for frame, _ in RawPcapReader(str(path))]


@pytest.mark.parametrize(("build", "how"), [("wide256", signal.SIGTERM), ("jumbo2048", signal.SIGKILL)])
def test_ranks_packets_by_name(tmp_path, build, how):
    """Every packet of a job is in its rank's file, and from the files alone every result can be checked."""
    rng = np.random.default_rng(3)
    arrays = [
        (rng.standard_normal(30_000) * (rng.random(30_000) < 0.1)).astype(np.float32) for _ in range(RANKS)
    ]
    with running_cluster(build, switch_options=["--pcap", str(tmp_path / "pcap")]) as cluster:
        raise_errors(run_ranks(cluster, "job", RANKS, lambda c, rank: c.allreduce(arrays[rank])))
        cluster.switch_process.send_signal(how)
        cluster.switch_process.wait(20)
    files = sorted((tmp_path / "pcap").iterdir())
    assert [path.name for path in files] == [f"port{rank + 1}.pcap" for rank in range(RANKS)]

    contributions: dict[tuple[int, ...], dict[int, np.ndarray]] = {}
    results: dict[tuple[int, ...], dict[int, np.ndarray]] = {}
    ranks = set()
    for path in files:
        packets = rdpcap(str(path))
        assert [packet.time for packet in packets] == sorted(packet.time for packet in packets)
        seen = [packet[SwitchReduce] for packet in packets]
        assert {layer.kind for layer in seen} == {HELLO, CONTRIBUTION, RESULT}
        assert seen[0].kind == HELLO
        [rank] = {layer.rank for layer in seen}
        ranks.add(rank)
        for packet, layer in zip(packets, seen, strict=True):
            assert layer.magic == constants.MAGIC
            assert layer.lane_count == len(layer.lanes) == load_build(build).lanes
            assert (layer.job, layer.generation) == (seen[0].job, seen[0].generation)
            inward = layer.kind != RESULT
            assert (packet[UDP].dport == constants.AGGREGATION_PORT) == inward
            if layer.kind != HELLO:
                chunk = layer.slot, layer.version, layer.chunk, layer.op
                kept = (contributions if inward else results).setdefault(chunk, {})
                kept[rank] = np.array(layer.lanes, np.uint32)
    assert ranks == set(range(RANKS))
    assert results.keys() == contributions.keys()
    assert {op for *_, op in results} == set(COMBINE)
    for chunk, of_ranks in results.items():
        assert of_ranks.keys() == contributions[chunk].keys() == ranks
        expected = COMBINE[chunk[3]](np.array(list(contributions[chunk].values())))
        for lanes in of_ranks.values():
            np.testing.assert_array_equal(lanes, expected)


def test_datagrams_are_captured_as_the_program_sees_them(
    run_dataplane: Callable[..., DataPlane], tmp_path: Path
) -> None:
    driver = UdpDriver(("127.0.0.1", 0), advertised=("10.0.0.1", 21330))
    capture = PortCapture(tmp_path, {}, print)
    run_dataplane(driver, capture=capture)
    for port in (1, 2):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            peer.settimeout(5)
            peer.connect(driver.address)
            for size in (0, 1, 5000):
                peer.send(bytes([port]) * size)
                peer.recv(65536)
            there, back = rdpcap(str(tmp_path / f"port{port}.pcap"))[-2:]
            assert (there[IP].src, there[UDP].sport) == peer.getsockname()
            assert (there[IP].dst, there[UDP].dport) == ("10.0.0.1", 21330)
            assert bytes(there[UDP].payload) == bytes([port]) * 5000
            there.src, there.dst = there.dst, there.src  # all that the program changes
            assert bytes(back) == bytes(there)
    assert capture.frames == 12
    assert capture.summary() == f"pcap: 12 frames in {tmp_path}"
    capture.close()


def test_what_arrives_before_there_is_a_program_is_captured(
    run_dataplane: Callable[..., DataPlane], tmp_path: Path
) -> None:
    driver = UdpDriver(("127.0.0.1", 0))
    capture = PortCapture(tmp_path, {}, print)
    run_dataplane(driver, program=False, capture=capture)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.connect(driver.address)
        peer.send(b"anyone?")
        eventually(lambda: capture.frames == 1)
    capture.close()


def test_frames_go_to_the_files_of_their_ports(tmp_path):
    capture = PortCapture(tmp_path, {1: "veth1", 2: "shared", 3: "shared"}, print)
    assert frames_in(tmp_path / "veth1.pcap") == []  # there from the start
    frames = batch((2, b"a"), (1, b"b"), (9, b"c"), (3, b"d"), (1, b"e" * 9000))
    capture.record(frames)
    capture.record(frames, np.array([4, 0]))
    assert frames_in(tmp_path / "veth1.pcap") == [b"b", b"e" * 9000, b"e" * 9000]
    assert frames_in(tmp_path / "shared.pcap") == [b"a", b"d", b"a"]
    assert frames_in(tmp_path / "port9.pcap") == [b"c"]
    capture.close()


def test_a_full_disk_ends_the_capture_and_not_the_switch(tmp_path):
    said: list[str] = []
    capture = PortCapture(tmp_path, {1: "a"}, said.append)
    earlier = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, earlier[1]))
    try:
        for _ in range(5):
            capture.record(batch((1, bytes(400))))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, earlier)
    assert len(said) == 1
    assert "capture ends, the switch goes on" in said[0]
    assert "too large" in said[0]
    assert capture.summary().endswith("incomplete")
    assert frames_in(tmp_path / "a.pcap") == [bytes(400)] * 2
    capture.close()
