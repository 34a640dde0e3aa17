"""What the controller reads out of a packet-in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from switchreduce.controller import hello
from switchreduce.controller.entries import Location
from switchreduce.p4.builds import constants, load_build
from switchreduce.p4.scapy_layer import SwitchReduce

BUILD = load_build("wide256")


def packet(**fields: int) -> bytes:
    """A hello as the switch passes it on, without lanes."""
    frame = Ether(src="02:00:00:00:01:09", dst="02:53:52:00:00:01") / IP(src="10.0.0.9", dst="10.0.0.254")
    return bytes(frame / UDP(sport=4242) / SwitchReduce(**{"kind": constants.KIND_HELLO, **fields}))


def test_a_hello_tells_who_and_where():
    seen = hello.parse(
        BUILD, {"ingress_port": 7}, packet(job=3, rank=5, chunk=0xDEADBEEF, generation=2**64 - 2)
    )
    where = Location(port=7, mac=0x020000000109, address=0x0A000009, udp_port=4242)
    assert seen == hello.Hello(job_id=3, generation=2**64 - 2, rank=5, ticket=0xDEADBEEF, location=where)


@pytest.mark.parametrize("wrong", [{"magic": 1}, {"kind": constants.KIND_CONTRIBUTION}])
def test_another_packet_is_no_hello(wrong):
    assert hello.parse(BUILD, {"ingress_port": 7}, packet(**wrong)) is None


@given(st.integers(0, 200))
def test_a_short_packet_is_no_hello(length):
    whole = packet()
    assert (hello.parse(BUILD, {"ingress_port": 7}, whole[:length]) is None) == (length < len(whole))
