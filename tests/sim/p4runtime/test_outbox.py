from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st
from p4.v1 import p4runtime_pb2

from switchreduce.sim.p4runtime.outbox import Outbox


def message(number: int) -> p4runtime_pb2.StreamMessageResponse:
    return p4runtime_pb2.StreamMessageResponse(packet={"payload": bytes([number])})


@given(st.lists(st.booleans(), max_size=20), st.integers(1, 5))
def test_notices_are_kept_and_packets_only_while_there_is_room(are_packets: list[bool], most: int) -> None:
    outbox = Outbox(max_packets=most)
    queued = []
    for number, is_packet in enumerate(are_packets):
        if is_packet and not outbox.has_room():
            assert len(queued) >= most
            continue
        outbox.put(message(number))
        queued.append(message(number))
    outbox.close()
    assert list(outbox) == queued
    assert not outbox.has_room()


def test_the_reader_waits_for_what_comes_and_ends_when_it_is_closed() -> None:
    outbox = Outbox(max_packets=1)
    received: list[p4runtime_pb2.StreamMessageResponse] = []
    reader = threading.Thread(target=lambda: received.extend(outbox))
    reader.start()
    outbox.put(message(1))
    outbox.put(message(2))
    outbox.close()
    reader.join(5)
    assert received == [message(1), message(2)]
