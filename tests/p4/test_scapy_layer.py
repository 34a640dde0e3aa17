"""The Scapy layer against the NumPy dtype: two views of the same bytes."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import NoPayload, Raw
from scapy.utils import rdpcap, wrpcap

from switchreduce.p4.builds import build_names, constants, load_build
from switchreduce.p4.packet import datagram_bytes, datagram_dtype, envelope_bytes, header_bytes, header_fields
from switchreduce.p4.scapy_layer import SwitchReduce
from tests.documented import session, shape

BUILDS = [load_build(name) for name in build_names()]
SLOT_BYTES = header_bytes(BUILDS[0], "slot")

KINDS = {
    constants.KIND_HELLO: "hello",
    constants.KIND_CONTRIBUTION: "contribution",
    constants.KIND_RESULT: "result",
}
OPS = {constants.OP_SUM: "sum", constants.OP_OR: "or", constants.OP_MAX: "max"}


def names() -> list[str]:
    return [name for name, _ in header_fields(BUILDS[0], "slot")]


@st.composite
def datagrams(draw: st.DrawFn) -> np.ndarray:
    """One datagram of any build; any value in any field except `lane_count`."""
    build = draw(st.sampled_from(BUILDS))
    packet = np.zeros(1, datagram_dtype(build))
    for name, width in header_fields(build, "slot"):
        packet[name] = draw(st.integers(0, 2**width - 1))
    packet["lane_count"] = build.lanes
    packet["lanes"] = draw(arrays(np.uint32, build.lanes))
    return packet


def test_every_build_has_the_same_slot_header():
    assert len({tuple(header_fields(build, "slot")) for build in BUILDS}) == 1


@settings(max_examples=30)
@given(datagrams())
def test_what_the_dtype_writes_the_layer_reads(packet):
    layer = SwitchReduce(packet.tobytes())
    assert {name: getattr(layer, name) for name in names()} == {
        name: int(packet[name][0]) for name in names()
    }
    assert layer.lanes == packet["lanes"][0].tolist()
    assert isinstance(layer.payload, NoPayload)


@settings(max_examples=30)
@given(datagrams())
def test_what_the_layer_writes_the_dtype_reads(packet):
    fields = {name: int(packet[name][0]) for name in names() if name != "lane_count"}
    assert bytes(SwitchReduce(**fields, lanes=packet["lanes"][0])) == packet.tobytes()


@settings(max_examples=30)
@given(datagrams(), st.data())
def test_a_changed_field_changes_its_own_bytes_only(packet, data):
    layer = SwitchReduce(packet.tobytes())
    name, width = data.draw(st.sampled_from(header_fields(BUILDS[0], "slot")))
    value = data.draw(st.integers(0, 2**width - 1))
    lane = data.draw(st.integers(0, packet["lane_count"][0] - 1))
    setattr(layer, name, value)
    layer.lanes[lane] ^= 1
    packet[name] = value
    packet["lanes"][0, lane] ^= 1
    assert bytes(layer) == packet.tobytes()


@given(st.binary(max_size=200), st.none() | st.integers(0, 65535), st.integers(0, 65535))
def test_any_bytes_behind_the_port_come_back(noise, lanes, udp_port):
    """Cut off, too long or nothing of ours: shown as far as it goes, and the same when built again."""
    payload = noise if lanes is None else bytes(SwitchReduce(lane_count=lanes)) + noise
    frame = Ether() / IP() / UDP(sport=udp_port, dport=constants.AGGREGATION_PORT) / Raw(payload)
    seen = Ether(bytes(frame))
    assert (SwitchReduce in seen) == (len(payload) >= SLOT_BYTES)
    assert bytes(seen[UDP].payload) == payload
    seen.show(dump=True)


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.name)
def test_every_truncation_shows_what_is_there(build, tmp_path):
    datagram = SwitchReduce(kind="hello", job=7, lanes=range(1, build.lanes + 1))
    whole = Ether() / IP() / UDP(sport=4000) / datagram
    frame = bytes(whole)
    assert len(frame) == envelope_bytes(build) + datagram_bytes(build)
    kept = [*range(14, 90), len(frame) - 1, len(frame)]
    wrpcap(str(tmp_path / "cut.pcap"), [Raw(frame[:n]) for n in kept], linktype=1)
    for n, packet in zip(kept, rdpcap(str(tmp_path / "cut.pcap")), strict=True):
        packet.show(dump=True)
        assert bytes(packet) == frame[:n]
        header = envelope_bytes(build) + SLOT_BYTES
        assert (SwitchReduce in packet) == (n >= header)
        if n >= header:
            lanes, rest = divmod(n - header, 4)
            assert packet[SwitchReduce].lanes == list(range(1, lanes + 1))
            assert len(packet[SwitchReduce].payload) == rest


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", OPS)
def test_numbers_are_shown_by_name(kind, op):
    layer = SwitchReduce(
        kind=kind, op=op, job=3, rank=1, slot=9, version=1, chunk=17, generation=0xAB, lanes=[7, 8]
    )
    shown = SwitchReduce(bytes(layer)).show(dump=True)
    lines = dict(line.replace(" ", "").split("=", 1) for line in shown.splitlines() if "=" in line)
    assert lines == {
        "magic": hex(constants.MAGIC), "kind": KINDS[kind], "op": OPS[op], "lane_count": "2", "job": "3",
        "rank": "1", "version": "1", "slot": "9", "chunk": "17", "generation": "0xab", "lanes": "[7,8]",
    }  # fmt: skip
    assert layer.summary() == f"{KINDS[kind]} {OPS[op]} job 3 rank 1 slot 9.1 chunk 17"
    assert SwitchReduce(kind=KINDS[kind], op=OPS[op]).kind == kind


@pytest.mark.parametrize("ports", [(4000, constants.AGGREGATION_PORT), (constants.AGGREGATION_PORT, 53)])
def test_both_ways_are_known_by_port_whatever_the_other_one_is(ports):
    sent = Ether() / IP() / UDP(sport=ports[0], dport=ports[1]) / SwitchReduce(lanes=[1])
    assert SwitchReduce in Ether(bytes(sent))


def test_other_ports_are_left_alone():
    assert SwitchReduce not in Ether(bytes(Ether() / IP() / UDP(sport=1, dport=2) / bytes(SwitchReduce())))


def test_the_documented_session_in_scapys_shell(tmp_path):
    kinds = ("hello", "contribution", "result")
    packets = [Ether() / IP() / UDP(sport=4000) / SwitchReduce(kind=kind, lanes=[5, 6]) for kind in kinds]
    for packet in packets[1:]:
        packet.op = constants.OP_MAX
    (tmp_path / "DIR").mkdir()
    wrpcap(str(tmp_path / "DIR" / "port1.pcap"), packets)
    steps = session("rdpcap")
    shell = subprocess.run(
        [sys.executable, "-m", "scapy", "-H", "-C"],
        input="".join(f"{command}\n" for command, _ in steps),
        capture_output=True, text=True, timeout=60, cwd=tmp_path,
        env={"PYTHONPATH": ":".join(filter(None, sys.path)), "HOME": str(tmp_path), "TERM": "dumb"},
    )  # fmt: skip
    printed = re.sub(r"\x1b\[\d*m|>>> ", "", shell.stdout).splitlines()
    documented = [line for _, lines in steps for line in lines]
    assert len(documented) > 10
    assert shape(documented) <= shape(printed), shell.stdout + shell.stderr
    assert any(re.fullmatch(r" *lanes *= \[5, 6\]", line) for line in printed)
