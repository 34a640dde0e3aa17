"""The socket under the engine, against plain sockets of the kernel."""

from __future__ import annotations

import socket
import threading
import time

import numpy as np
import pytest

from switchreduce.errors import SwitchError
from switchreduce.p4.builds import constants, load_build
from switchreduce.p4.packet import datagram_dtype
from switchreduce.worker.transport.engine import Op, Session, SlotEngine, warm_up
from switchreduce.worker.transport.udp import UdpLink, drive

BUILD = load_build("wide256")


@pytest.fixture(scope="module", autouse=True)
def compiled():
    warm_up()


@pytest.fixture
def peer():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(5)
        yield sock


def receive_all(link: UdpLink, wanted: int) -> list[bytes]:
    datagrams: list[bytes] = []
    deadline = time.monotonic() + 5
    while len(datagrams) < wanted and time.monotonic() < deadline:
        length, size = link.receive()
        for first in range(0, length, max(size, 1)):
            datagrams.append(link.buffer[first : min(first + size, length)].tobytes())
    return datagrams


@pytest.mark.parametrize("offload", [True, False])
@pytest.mark.parametrize("build", ["wide256", "jumbo2048"])
def test_datagrams_arrive_one_by_one_in_order(peer, offload, build):
    packets = np.zeros(64, datagram_dtype(load_build(build)))
    packets["chunk"] = np.arange(64)
    link = UdpLink(peer.getsockname(), offload)
    got = []
    for part in np.split(packets, 8):  # no more at once than a default socket buffer holds
        link.send(part)
        got += [peer.recvfrom(65536) for _ in part]
    assert b"".join(data for data, _ in got) == packets.tobytes()
    for first in range(0, 64, 8):
        part = got[first : first + 8]
        for data, address in part:
            peer.sendto(data, address)
        assert receive_all(link, 8) == [data for data, _ in part]
    link.close()


def test_an_empty_batch_sends_nothing(peer):
    link = UdpLink(peer.getsockname())
    link.send(np.zeros(0, "V1048"))
    assert link.receive() == (0, 0)
    link.close()


def test_other_senders_are_not_heard(peer):
    link = UdpLink(peer.getsockname())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(b"forged", link.socket.getsockname())
        peer.sendto(b"real", link.socket.getsockname())
    assert receive_all(link, 1) == [b"real"]
    link.close()


def stuck_engine() -> SlotEngine:
    engine = SlotEngine(Session(1, 1, 0, 1, 8), BUILD, rows=8)
    segment = engine.allocate(Op.SUM, 8)
    assert segment is not None
    engine.queue(segment)
    return engine


def test_nobody_at_the_port_is_said_before_the_timeout():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        address = sock.getsockname()
    link = UdpLink(address)
    with pytest.raises(SwitchError, match="nothing listens at"):
        drive(stuck_engine(), link, lambda: False, stall_timeout=60)
    link.close()


def test_silence_is_an_error_after_the_timeout(peer):
    link = UdpLink(peer.getsockname())
    with pytest.raises(SwitchError, match=r"no result .* for 0\.3 s"):
        drive(stuck_engine(), link, lambda: False, stall_timeout=0.3)
    link.close()


def test_news_interrupts_the_wait(peer):
    link = UdpLink(peer.getsockname())
    ours, theirs = socket.socketpair()

    class News(Exception):
        pass

    def news() -> None:
        raise News

    timer = threading.Timer(0.2, lambda: theirs.send(b"!"))
    timer.start()
    with pytest.raises(News):
        drive(
            stuck_engine(), link, lambda: False, interrupt=ours.fileno(), on_interrupt=news, stall_timeout=30
        )
    timer.join()
    for sock in (ours, theirs):
        sock.close()
    link.close()


def test_the_engine_runs_over_the_socket(peer):
    """A world of one needs no switch to know its sums: the peer turns contributions into results."""
    engine = SlotEngine(Session(1, 1, 0, 1, 8), BUILD, rows=200)
    segment = engine.allocate(Op.SUM, 200)
    assert segment is not None
    segment.lanes[...] = np.arange(200, dtype=np.uint32)[:, None]
    engine.queue(segment)

    def answer() -> None:
        while not segment.done:  # a busy machine's packets are sent more than once
            try:
                data, address = peer.recvfrom(65536)
            except TimeoutError:
                return
            result = np.frombuffer(data, engine.datagram).copy()
            result["kind"] = constants.KIND_RESULT
            peer.sendto(result.tobytes(), address)

    peer.settimeout(1)
    thread = threading.Thread(target=answer)
    thread.start()
    link = UdpLink(peer.getsockname())
    drive(engine, link, lambda: segment.done, stall_timeout=10)
    thread.join()
    np.testing.assert_array_equal(segment.lanes[:, 7], np.arange(200))
    link.close()
