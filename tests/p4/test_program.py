"""The compiled program, packet by packet, on the embedded switch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

from switchreduce.controller.entities import Action, TableEntry, Update
from switchreduce.controller.entries import Host, Location, admission, host, local, opening
from switchreduce.controller.slots import Lease
from switchreduce.p4.builds import Build, constants, load_build
from switchreduce.p4.packet import datagram_dtype
from switchreduce.sim.apply import apply
from switchreduce.sim.target import Switch, load_program

AGGREGATION = "10.0.0.254"
SWITCH_MAC = "02:53:52:00:00:01"
JOB, GENERATION, SLOTS = 5, 0xABCDEF0123456789, 4


def address(text: str) -> int:
    return int.from_bytes(bytes(map(int, text.split("."))), "big")


def rank_address(rank: int) -> str:
    return f"10.0.0.{rank + 1}"


def rank_mac(rank: int) -> str:
    return f"02:00:00:00:00:{rank + 1:02x}"


class Bench:
    """A switch with one admitted job; rank r is on port r + 1."""

    def __init__(self, build: Build, ranks: int) -> None:
        self.build = build
        self.ranks = ranks
        self.switch = Switch(load_program(build.json_path), cpu_port=constants.CPU_PORT)
        lease = Lease(JOB, 9, tuple(range(1, ranks + 1)), range(8, 8 + SLOTS))
        locations = [
            Location(r + 1, 0x020000000001 + r, address(rank_address(r)), 4000 + r) for r in range(ranks)
        ]
        apply(self.switch, local(address(AGGREGATION), 0x025352000001))
        apply(self.switch, opening(lease, GENERATION))
        apply(self.switch, admission(lease, GENERATION, locations))

    def datagram(self, **fields: object) -> np.ndarray:
        packet = np.zeros(1, datagram_dtype(self.build))
        defaults = {
            "magic": constants.MAGIC,
            "kind": constants.KIND_CONTRIBUTION,
            "lane_count": self.build.lanes,
            "job": JOB,
            "generation": GENERATION,
        }
        for name, value in {**defaults, **fields}.items():
            packet[name] = value
        return packet

    def frame(self, rank: int, payload: bytes, **ip: object) -> bytes:
        return bytes(
            Ether(src=rank_mac(rank), dst=SWITCH_MAC)
            / IP(**{"src": rank_address(rank), "dst": AGGREGATION, **ip})
            / UDP(sport=4000 + rank, dport=constants.AGGREGATION_PORT)
            / Raw(payload)
        )

    def contribute(self, rank: int, **fields: object) -> list[tuple[int, bytes]]:
        datagram = self.datagram(rank=rank, **fields)
        return self.switch.process(rank + 1, self.frame(rank, datagram.tobytes()))

    def drops(self) -> dict[int, int]:
        counter = self.switch.counters["SwitchIngress.drops"]
        counts = {reason: counter.read(reason)[0] for reason in range(constants.DROP_REASONS)}
        return {reason: count for reason, count in counts.items() if count}

    def parse(self, frame: bytes) -> np.void:
        return np.frombuffer(frame[42:], datagram_dtype(self.build))[0]


@pytest.fixture(scope="module")
def programs():
    return {name: Bench(load_build(name), 3) for name in ("wide256", "narrow256", "jumbo2048")}


@pytest.fixture
def bench():
    return Bench(load_build("wide256"), 3)


def test_the_last_contribution_multicasts_the_sum(bench):
    lanes = np.arange(3 * 256, dtype=np.uint32).reshape(3, 256) * np.uint32(0x01010101)
    assert bench.contribute(0, lanes=lanes[0], chunk=7, slot=2) == []
    assert bench.contribute(2, lanes=lanes[2], chunk=7, slot=2) == []
    out = bench.contribute(1, lanes=lanes[1], chunk=7, slot=2)
    assert sorted(port for port, _ in out) == [1, 2, 3]
    for port, frame in out:
        packet = Ether(frame)
        assert (packet.src, packet.dst) == (SWITCH_MAC, rank_mac(port - 1))
        assert (packet[IP].src, packet[IP].dst) == (AGGREGATION, rank_address(port - 1))
        assert (packet[UDP].sport, packet[UDP].dport) == (constants.AGGREGATION_PORT, 4000 + port - 1)
        assert packet[UDP].chksum == 0
        checksum = packet[IP].chksum
        del packet[IP].chksum
        assert IP(bytes(packet[IP])).chksum == checksum
        result = bench.parse(frame)
        assert (result["kind"], result["rank"], result["chunk"]) == (constants.KIND_RESULT, port - 1, 7)
        np.testing.assert_array_equal(result["lanes"], lanes.sum(axis=0, dtype=np.uint32))
    assert bench.drops() == {}


def test_a_rank_that_asks_again_gets_the_result_alone(bench):
    for rank in range(3):
        out = bench.contribute(rank, lanes=rank + 1, chunk=1)
    again = bench.contribute(1, lanes=99, chunk=1)
    assert [port for port, _ in again] == [2]
    assert again[0][1] == dict(out)[2]


def test_the_slot_rule_and_its_drop_reasons(bench):
    bench.contribute(0, lanes=1, chunk=10)
    assert bench.contribute(0, lanes=1, chunk=10) == []
    assert bench.contribute(1, lanes=1, chunk=9) == []
    assert bench.contribute(1, lanes=1, chunk=10, op=constants.OP_OR) == []
    assert bench.contribute(1, lanes=1, chunk=10, slot=SLOTS) == []
    assert bench.drops() == {
        constants.DROP_DUPLICATE: 1,
        constants.DROP_STALE: 1,
        constants.DROP_OP_CONFLICT: 1,
        constants.DROP_SLOT_RANGE: 1,
    }
    bench.contribute(1, lanes=1, chunk=11)  # newer: starts over, forgetting chunk 10
    bench.contribute(0, lanes=1, chunk=11)
    (_, frame), *_ = bench.contribute(2, lanes=1, chunk=11)
    assert (bench.parse(frame)["lanes"] == 3).all()


@pytest.mark.parametrize("old", [0, 5, 2**31 - 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("ahead", [1, 2, 2**31 - 1])
def test_chunks_are_serial_numbers(bench, old, ahead):
    new = (old + ahead) % 2**32
    bench.contribute(0, lanes=1, chunk=old)
    bench.contribute(1, lanes=1, chunk=new)
    assert bench.contribute(0, lanes=1, chunk=old) == []
    assert bench.drops() == {constants.DROP_STALE: 1}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"magic": 0x5353}, constants.DROP_MALFORMED),
        ({"kind": 0}, constants.DROP_MALFORMED),
        ({"kind": constants.KIND_RESULT}, constants.DROP_MALFORMED),
        ({"kind": 200}, constants.DROP_MALFORMED),
        ({"op": 3}, constants.DROP_MALFORMED),
        ({"lane_count": 255}, constants.DROP_MALFORMED),
        ({"version": 2}, constants.DROP_MALFORMED),
        ({"job": JOB + 1}, constants.DROP_UNADMITTED),
        ({"generation": GENERATION ^ 1}, constants.DROP_UNADMITTED),
        ({"rank": 0}, constants.DROP_UNADMITTED),  # rank 1's address
        ({"kind": constants.KIND_HELLO}, constants.DROP_HELLO),  # the job runs already
        ({"slot": 65535}, constants.DROP_SLOT_RANGE),
    ],
)
def test_foreign_packets_are_dropped_and_counted(bench, fields, reason):
    datagram = bench.datagram(**{"rank": 1, "lanes": 7, **fields})
    assert bench.switch.process(2, bench.frame(1, datagram.tobytes())) == []
    assert bench.drops() == {reason: 1}
    for rank in range(3):
        out = bench.contribute(rank, lanes=1)
    assert (bench.parse(out[0][1])["lanes"] == 3).all()


@pytest.mark.parametrize("length", [0, 1, 23, 24, 25, 1047, 1049, 1400])
def test_payloads_of_another_size_are_malformed(bench, length):
    payload = (bench.datagram(rank=1).tobytes() + bytes(1000))[:length]
    assert bench.switch.process(2, bench.frame(1, payload)) == []
    assert bench.drops() == {constants.DROP_MALFORMED: 1}


def test_ip_that_cannot_be_trusted_is_dropped(bench):
    payload = bench.datagram(rank=1).tobytes()
    frame = bytearray(bench.frame(1, payload))
    frame[24] ^= 1  # the IPv4 header checksum
    assert bench.switch.process(2, bytes(frame)) == []
    trailing = bench.frame(1, payload) + b"x"  # longer than IPv4 says
    assert bench.switch.process(2, trailing) == []
    fragment = bench.frame(1, payload, flags="MF")
    assert bench.switch.process(2, fragment) == []
    options = bytes(
        Ether() / IP(src="10.0.0.2", dst=AGGREGATION, options=b"\x01\x01\x01\x01") / UDP() / payload
    )
    assert bench.switch.process(2, options) == []
    assert bench.drops() == {
        constants.DROP_IP_CHECKSUM: 1,
        constants.DROP_MALFORMED: 2,
        constants.DROP_IP_OPTIONS: 1,
    }


def test_every_truncation_is_dropped(bench):
    frame = bench.frame(1, bench.datagram(rank=1).tobytes())
    lengths = [*range(0, 90), 500, len(frame) - 1]
    for length in lengths:
        assert bench.switch.process(2, frame[:length]) == []
    assert sum(bench.drops().values()) == len(lengths)


def test_a_hello_of_a_forming_job_reaches_the_controller():
    bench = Bench(load_build("wide256"), 1)
    forming = Lease(JOB + 1, 3, (5,), range(20, 24))
    apply(bench.switch, opening(forming, 42))
    hello = bench.datagram(kind=constants.KIND_HELLO, job=JOB + 1, generation=42, chunk=0xDEADBEEF, lanes=1)
    frame = bench.frame(0, hello.tobytes())
    ((port, out),) = bench.switch.process(17, frame)
    assert port == constants.CPU_PORT
    assert out[:2] == (17).to_bytes(2, "big")
    assert out[2:] == frame[: 42 + 24]


def test_arp_and_ping_are_answered(bench):
    request = Ether(src=rank_mac(0), dst="ff:ff:ff:ff:ff:ff") / ARP(
        op=1, hwsrc=rank_mac(0), psrc=rank_address(0), pdst=AGGREGATION
    )
    ((port, out),) = bench.switch.process(1, bytes(request))
    reply = Ether(out)
    assert (port, reply.dst, reply[ARP].op, reply[ARP].hwsrc) == (1, rank_mac(0), 2, SWITCH_MAC)
    assert (reply[ARP].psrc, reply[ARP].pdst, reply[ARP].hwdst) == (AGGREGATION, rank_address(0), rank_mac(0))

    for payload in (b"", b"\x00" * 56, b"\xff" * 57, bytes(range(200))):
        echo = (
            Ether(src=rank_mac(0), dst=SWITCH_MAC)
            / IP(src=rank_address(0), dst=AGGREGATION)
            / ICMP(id=7, seq=3)
            / Raw(payload)
        )
        ((port, out),) = bench.switch.process(1, bytes(echo))
        answer = Ether(out)
        assert (port, answer[ICMP].type, answer[IP].src, answer[IP].dst) == (
            1,
            0,
            AGGREGATION,
            rank_address(0),
        )
        checksum = answer[ICMP].chksum
        del answer[ICMP].chksum
        assert ICMP(bytes(answer[ICMP])).chksum == checksum
    assert bench.drops() == {}


def test_hosts_reach_each_other(bench):
    apply(bench.switch, host(Host(address("10.0.1.7"), 12, 0x020000000707), None, 0x025352000001))
    packet = Ether(src=rank_mac(0), dst=SWITCH_MAC) / IP(src=rank_address(0), dst="10.0.1.7", ttl=9)
    # a datagram between hosts is theirs, whatever its port
    for upper in (UDP(sport=1, dport=constants.AGGREGATION_PORT) / bench.datagram().tobytes(), ICMP(), UDP()):
        ((port, out),) = bench.switch.process(1, bytes(packet / upper))
        forwarded = Ether(out)
        assert (port, forwarded.src, forwarded.dst) == (12, SWITCH_MAC, "02:00:00:00:07:07")
        assert forwarded[IP].ttl == 8
        assert bytes(forwarded[IP].payload) == bytes((packet / upper)[IP].payload)
    question = Ether() / ARP(op=1, psrc=rank_address(0), pdst="10.0.1.7")
    ((_, out),) = bench.switch.process(1, bytes(question))
    assert Ether(out)[ARP].hwsrc == SWITCH_MAC

    packet[IP].ttl = 1
    assert bench.switch.process(1, bytes(packet)) == []
    packet[IP].ttl, packet[IP].dst = 9, "10.9.9.9"
    assert bench.switch.process(1, bytes(packet)) == []
    assert bench.switch.process(1, bytes(Ether(type=0x86DD) / Raw(bytes(60)))) == []
    assert bench.switch.process(1, bytes(Ether() / ARP(op=1, pdst="10.9.9.9"))) == []
    assert bench.switch.process(1, bytes(Ether() / IP(dst=AGGREGATION) / UDP(dport=53))) == []
    expected = (
        constants.DROP_TTL, constants.DROP_NO_ROUTE, constants.DROP_ETHERTYPE, constants.DROP_ARP,
        constants.DROP_LOCAL,
    )  # fmt: skip
    assert bench.drops() == dict.fromkeys(expected, 1)


def test_a_result_without_an_endpoint_is_counted(bench):
    endpoint = TableEntry("SwitchEgress.endpoints", {"endpoint": 2})
    apply(bench.switch, ((Update(Action.DELETE, endpoint),),))
    for rank in range(3):
        out = bench.contribute(rank, lanes=1)
    assert sorted(port for port, _ in out) == [1, 3]
    assert bench.switch.counters["SwitchEgress.undeliverable"].read(0)[0] == 1


# ------------------------------------------------------------------------------------ the three builds

_chunks = itertools.count(1)


@settings(max_examples=40)
@given(
    op=st.sampled_from([constants.OP_SUM, constants.OP_OR, constants.OP_MAX]),
    order=st.lists(st.integers(0, 2), min_size=1, max_size=9),
    seed=st.integers(0, 2**32 - 1),
)
def test_builds_agree_lane_for_lane(programs, op, order, seed):
    """The same contributions in the same order: wide and narrow send identical frames, and a jumbo packet
    is eight of them side by side."""
    rng = np.random.default_rng(seed)
    chunk = next(_chunks)
    lanes = rng.integers(0, 1 << 32, (3, 2048), np.uint32)
    edge = rng.random(lanes.shape) < 0.5
    lanes[edge] = rng.choice(np.array([0, 1, 2**31 - 1, 2**31, 2**32 - 1], np.uint32), int(edge.sum()))
    seen: set[int] = set()
    for rank in order:
        jumbo = programs["jumbo2048"].contribute(rank, op=op, chunk=chunk, lanes=lanes[rank])
        part = lanes[rank, :256]
        wide = programs["wide256"].contribute(rank, op=op, chunk=chunk, lanes=part)
        narrow = programs["narrow256"].contribute(rank, op=op, chunk=chunk, lanes=part)
        assert wide == narrow
        assert [port for port, _ in jumbo] == [port for port, _ in wide]
        for (_, big), (_, small) in zip(jumbo, wide, strict=True):
            sums = programs["jumbo2048"].parse(big)["lanes"]
            np.testing.assert_array_equal(sums[:256], programs["wide256"].parse(small)["lanes"])
        seen.add(rank)
        if len(seen) == 3 and jumbo:
            expected = {
                constants.OP_SUM: lanes.sum(axis=0, dtype=np.uint32),
                constants.OP_OR: np.bitwise_or.reduce(lanes, axis=0),
                constants.OP_MAX: lanes.max(axis=0),
            }[op]
            np.testing.assert_array_equal(programs["jumbo2048"].parse(jumbo[0][1])["lanes"], expected)
