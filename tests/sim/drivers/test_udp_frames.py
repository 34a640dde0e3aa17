"""Frames made of payloads and back, in memory; test_udp.py has real sockets."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scapy.all import IP, UDP, Ether

from switchreduce.sim.drivers import udp_frames
from switchreduce.sim.drivers.udp_frames import HEADER_BYTES, MAX_PAYLOAD_BYTES, MAX_SEGMENTS, PORTS

SWITCH = ("10.9.8.7", 21330)
payload_sizes = st.one_of(st.integers(0, 40), st.sampled_from([1100, 1100, 1472, 8246]))
packets = st.lists(st.tuples(st.sampled_from([1, 2, 509]), payload_sizes), max_size=150)


class Batch:
    """The arrays of a frame batch."""

    def __init__(self, frames: int, octets: int) -> None:
        self.data = np.zeros(octets, np.uint8)
        self.offset, self.length, self.port = np.zeros((3, frames), np.int64)

    def frame(self, index: int) -> bytes:
        start = self.offset[index]
        return self.data[start : start + self.length[index]].tobytes()


def peer_of(port: int) -> tuple[str, int]:
    return f"127.0.0.{port % 250 + 1}", 40000 + port


def templates() -> np.ndarray:
    made = np.zeros((PORTS, HEADER_BYTES), np.uint8)
    for port in range(PORTS):
        (source, source_port), (destination, destination_port) = peer_of(port), SWITCH
        header = udp_frames.header_template(
            port,
            (bytes(map(int, source.split("."))), source_port),
            (bytes(map(int, destination.split("."))), destination_port),
        )
        made[port] = np.frombuffer(header, np.uint8)
    return made


def wrap(payloads: list[tuple[int, bytes]]) -> Batch:
    received = np.frombuffer(b"".join(payload for _, payload in payloads) or b"\0", np.uint8)
    sizes = np.array([len(payload) for _, payload in payloads], np.int64)
    places = np.cumsum(sizes) - sizes
    ports = np.array([port for port, _ in payloads], np.int64)
    batch = Batch(max(1, len(payloads)), int(sizes.sum()) + HEADER_BYTES * len(payloads) + 1)
    written = udp_frames.wrap_payloads(
        received, np.array([places, sizes, ports], np.int64), len(payloads), templates(),
        batch.data, batch.offset, batch.length, batch.port,
    )  # fmt: skip
    assert written == len(payloads)
    return batch


def unwrap(batch: Batch, selected: np.ndarray, max_segments: int = MAX_SEGMENTS):
    payloads = np.zeros(max(1, batch.data.size), np.uint8)
    runs = np.zeros((5, max(1, selected.size)), np.int64)
    count, malformed = udp_frames.unwrap_frames(
        batch.data, batch.offset, batch.length, batch.port, selected, max_segments, payloads, runs
    )
    return payloads, runs[:, :count].T.tolist(), malformed


def random_payloads(shapes: list[tuple[int, int]]) -> list[tuple[int, bytes]]:
    rng = np.random.default_rng(len(shapes))
    return [(port, rng.bytes(size)) for port, size in shapes]


@given(packets)
def test_frames_are_what_scapy_would_build(shapes: list[tuple[int, int]]) -> None:
    payloads = random_payloads(shapes[:10])
    batch = wrap(payloads)
    for index, (port, payload) in enumerate(payloads):
        source, source_port = peer_of(port)
        expected = (
            Ether(src=f"02:00:00:00:{port >> 8:02x}:{port & 255:02x}", dst="02:00:00:00:ff:ff")
            / IP(src=source, dst=SWITCH[0], id=0, flags="DF", ttl=64)
            / UDP(sport=source_port, dport=SWITCH[1], chksum=0)
            / payload
        )
        assert batch.frame(index) == bytes(expected)
        assert batch.port[index] == port


@given(packets, st.sampled_from([1, 3, MAX_SEGMENTS]))
def test_every_port_gets_its_payloads_in_order(shapes: list[tuple[int, int]], max_segments: int) -> None:
    payloads = random_payloads(shapes)
    batch = wrap(payloads)
    gathered, runs, malformed = unwrap(batch, np.arange(len(payloads)), max_segments)
    assert malformed == 0
    sent: dict[int, list[bytes]] = {}
    for port, place, size, segment, count in runs:
        assert count <= max_segments
        assert size <= MAX_PAYLOAD_BYTES
        piece = gathered[place : place + size].tobytes()
        # What the kernel makes of a super-datagram: equal pieces, the last one may be shorter.
        cut = [piece[at : at + segment] for at in range(0, size, segment)] if segment else [b""]
        assert len(cut) == count
        sent.setdefault(port, []).extend(cut)
    for port in {port for port, _ in payloads}:
        assert sent[port] == [payload for to, payload in payloads if to == port]


def test_equal_payloads_share_as_few_datagrams_as_may_be() -> None:
    batch = wrap([(1 + i % 2, bytes(1024)) for i in range(128)])
    _, runs, _ = unwrap(batch, np.arange(128))
    assert [(port, count) for port, _, _, _, count in runs] == [(1, 63), (1, 1), (2, 63), (2, 1)]


@given(st.binary(max_size=80), st.integers(0, 60), st.integers(0, 255))
def test_what_is_no_whole_udp_packet_is_counted_and_never_sent(junk: bytes, at: int, value: int) -> None:
    good = wrap([(1, b"payload")]).frame(0)
    damaged = bytearray(good)
    if at < len(damaged):
        damaged[at] = value
    frames = [junk, good[: at % len(good)], bytes(damaged)]
    batch = Batch(3, sum(map(len, frames)) + 1)
    start = 0
    for index, frame in enumerate(frames):
        batch.data[start : start + len(frame)] = np.frombuffer(frame, np.uint8)
        batch.offset[index], batch.length[index], batch.port[index] = start, len(frame), 1
        start += len(frame)
    gathered, runs, malformed = unwrap(batch, np.arange(3))
    assert malformed + sum(count for *_, count in runs) == 3
    for _, place, size, _, _ in runs:
        assert bytes(gathered[place : place + size].tobytes()) in bytes(damaged) + junk


def test_only_the_selected_frames_are_sent_and_as_often_as_selected() -> None:
    batch = wrap([(1, b"a"), (1, b"b"), (1, b"c")])
    gathered, runs, _ = unwrap(batch, np.array([2, 0, 0]))
    assert b"".join(gathered[at : at + size].tobytes() for _, at, size, _, _ in runs) == b"caa"


@given(st.lists(st.tuples(st.integers(0, 65507), st.integers(1, 9000)), max_size=8))
def test_super_datagrams_are_cut_as_the_kernel_joined_them(datagrams: list[tuple[int, int]]) -> None:
    count = len(datagrams)
    received = np.zeros((4, 8), np.int64)
    start, size, segment, port = received
    start[:] = np.arange(8) * 65536
    size[:count] = [each for each, _ in datagrams]
    segment[:count] = [each for _, each in datagrams]
    port[:count] = range(1, count + 1)
    pieces = sum(max(1, -(-each // by)) for each, by in datagrams)
    payloads = np.zeros((3, pieces + 1), np.int64)
    at, length, to = payloads
    assert udp_frames.split_datagrams(received, count, payloads) == pieces
    for index in range(count):
        mine = to[:pieces] == index + 1
        assert length[:pieces][mine].sum() == size[index]
        assert (np.diff(at[:pieces][mine]) == segment[index]).all()
        assert at[:pieces][mine][0] == start[index]


def test_a_batch_takes_no_more_frames_than_it_has_room_for() -> None:
    received = np.zeros(100, np.uint8)
    payloads = np.array([[0, 10, 20], [10, 10, 10], [1, 1, 1]], np.int64)  # places, sizes, ports
    for batch in (Batch(2, 1000), Batch(3, 2 * (HEADER_BYTES + 10) + 1)):
        arrays = (batch.data, batch.offset, batch.length, batch.port)
        assert udp_frames.wrap_payloads(received, payloads, 3, templates(), *arrays) == 2
