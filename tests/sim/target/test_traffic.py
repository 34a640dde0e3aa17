"""Multicast, clones, resubmit, recirculate, truncation and drops, as simple_switch.cpp has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from switchreduce.sim.target import Switch

from .bits import pack, unpack

ORDER = [("op", 8), ("port", 8), ("group", 16), ("length", 16), ("rounds", 8), ("unused", 8)]
TRACE = [("instance", 32), ("rid", 16), ("kept", 16), ("length", 32), ("port", 8), ("ingress_port", 8)]
TRACE_BYTES = 14
LOST = 5 << 15 & 0xFFFF  # what metadata outside the field list adds to `kept` where it survived
PAYLOAD = bytes(range(100))


@pytest.fixture
def switch(switch_of: Callable[[str], Switch]) -> Iterator[Switch]:
    switch = switch_of("traffic")
    switch.set_multicast_group(3, [(4, 40), (5, 50), (9, 90), (4, 41)])
    switch.set_clone_session(7, [(8, 80), (2, 20)])
    switch.set_clone_session(11, [(6, 0)], truncate_bytes=30)
    yield switch
    for group in switch.multicast_groups():
        switch.delete_multicast_group(group)
    for session in switch.clone_sessions():
        switch.delete_clone_session(session)


def send(switch: Switch, **order: int) -> list[tuple[int, dict[str, int], bytes]]:
    """(port, trace fields, what follows the trace) of each frame that leaves."""
    out = switch.process(3, pack(ORDER, order) + PAYLOAD)
    return [
        (port, unpack(TRACE, frame.ljust(TRACE_BYTES, b"\0")), frame[TRACE_BYTES:]) for port, frame in out
    ]


SIZE = 8 + len(PAYLOAD)


def test_unicast(switch: Switch) -> None:
    [(port, trace, rest)] = send(switch, op=0, port=6)
    assert port == 6
    assert trace == {"instance": 0, "rid": 0, "kept": LOST, "length": SIZE, "port": 6, "ingress_port": 3}
    assert rest == pack(ORDER, {"port": 6}) + PAYLOAD


def test_multicast_makes_independent_replicas_in_order(switch: Switch) -> None:
    out = send(switch, op=1, port=6, group=3)
    assert [(port, t["rid"], t["port"], t["instance"]) for port, t, _ in out] == [
        (4, 40, 4, 5),
        (5, 50, 5, 5),
        (4, 41, 4, 5),
    ]
    assert all(rest == pack(ORDER, {"op": 1, "port": 6, "group": 3}) + PAYLOAD for _, _, rest in out)


@pytest.mark.parametrize("op", [1, 6])
def test_nothing_leaves_for_an_unknown_group_or_after_mark_to_drop(switch: Switch, op: int) -> None:
    assert send(switch, op=op, port=6, group=99 if op == 1 else 3) == []


def test_ingress_clone_carries_the_packet_as_it_came_and_the_listed_metadata(switch: Switch) -> None:
    out = send(switch, op=2, port=6, group=7)
    assert [port for port, _, _ in out] == [8, 2, 6]
    for _, trace, rest in out[:2]:
        assert trace["instance"] == 1
        assert trace["kept"] == 0x1234  # without LOST
        assert trace["ingress_port"] == 0
        assert rest == pack(ORDER, {"op": 2, "port": 6, "group": 7}) + PAYLOAD
    assert [t["rid"] for _, t, _ in out] == [80, 20, 0]
    assert out[2][1]["kept"] == 0x1234 + LOST
    assert out[2][2] == pack(ORDER, {"op": 2, "port": 6, "group": 7, "unused": 1}) + PAYLOAD


def test_a_session_cuts_its_clones(switch: Switch) -> None:
    clone, original = switch.process(3, pack(ORDER, {"op": 2, "port": 6, "group": 11}) + PAYLOAD)
    assert (clone[0], len(clone[1])) == (6, 30)
    assert len(original[1]) == TRACE_BYTES + SIZE


def test_an_unknown_session_clones_nothing(switch: Switch) -> None:
    assert [port for port, _, _ in send(switch, op=2, port=6, group=12)] == [6]


def test_resubmit_parses_again_and_keeps_the_listed_metadata(switch: Switch) -> None:
    [(port, trace, rest)] = send(switch, op=3, port=6)
    assert port == 6
    # the second pass ends as a normal unicast packet; ingress_port is metadata and was not listed
    assert trace == {"instance": 0, "rid": 0, "kept": 3 + LOST, "length": SIZE, "port": 6, "ingress_port": 0}
    assert rest == pack(ORDER, {"op": 3, "port": 6}) + PAYLOAD


def test_recirculate_goes_round_and_carries_the_written_headers(switch: Switch) -> None:
    [(port, trace, rest)] = send(switch, op=7, port=6, rounds=4)
    assert port == 6
    assert trace["kept"] == 4 + LOST
    assert rest == pack(ORDER, {"op": 7, "port": 6, "rounds": 0}) + PAYLOAD


def test_endless_recirculation_ends_and_is_counted(switch: Switch) -> None:
    before = switch.refused_passes
    assert send(switch, op=7, port=6, rounds=255) == []
    assert switch.refused_passes == before + 1


def test_egress_clone_has_the_headers_of_egress(switch: Switch) -> None:
    out = send(switch, op=8, port=6, group=7)
    assert [port for port, _, _ in out] == [8, 2]  # the original is dropped after it was cloned
    for _, trace, rest in out:
        assert trace["instance"] == 2
        assert trace["kept"] == 0x77
        assert rest == pack(ORDER, {"op": 8, "port": 6, "group": 7, "unused": 2}) + PAYLOAD


@pytest.mark.parametrize("length", [0, 5, 14, 50, 121, 122, 500])
def test_truncate(switch: Switch, length: int) -> None:
    whole = switch.process(3, pack(ORDER, {"op": 4, "port": 6, "length": 60000}) + PAYLOAD)[0][1]
    [(_, frame)] = switch.process(3, pack(ORDER, {"op": 4, "port": 6, "length": length}) + PAYLOAD)
    assert len(frame) == min(length, len(whole))


def test_drop_in_ingress_and_in_egress(switch: Switch) -> None:
    assert send(switch, op=5, port=6) == []
    assert send(switch, op=0, port=9) == []


def test_groups_and_sessions_are_checked(switch: Switch) -> None:
    with pytest.raises(ValueError, match="group id"):
        switch.set_multicast_group(0, [])
    with pytest.raises(ValueError, match="replica"):
        switch.set_multicast_group(1, [(512, 0)])
    with pytest.raises(ValueError, match="session id"):
        switch.set_clone_session(1 << 15, [])
    with pytest.raises(KeyError):
        switch.delete_multicast_group(77)
