"""Packets for the aggregation program: valid ones, and what a network or a stranger makes of them."""

from __future__ import annotations

from random import Random

import numpy as np

from switchreduce.controller.entities import Action, TableEntry, Update
from switchreduce.controller.entries import Host, Location, Stages, admission, host, local, opening
from switchreduce.controller.slots import Lease
from switchreduce.p4.builds import Build, constants
from switchreduce.p4.packet import datagram_dtype

from .pair import Packet
from .programs import checksum

SWITCH, SWITCH_MAC = 0x0A0000FE, 0x025352000001
HOSTS = [Host(0x0A010001, 20, 0x020000000101), Host(0x0A010002, 21, 0x020000000102)]
NETWORK = 0x0A020000  # /16, behind host 0
STRANGER = 0x08080808
ADDRESSES = [SWITCH, HOSTS[0].address, HOSTS[1].address, NETWORK + 77, STRANGER]

SLOTS = 4
JOBS = [(5, 0xABCDEF0123456789, 3), (6, 1, 2)]  # (job, generation, ranks)
GENERATIONS = {job: generation for job, generation, _ in JOBS}
FORMING = (7, 42)  # (job, generation)
FIRST_CHUNK = 2**32 - 20  # so that chunk numbers wrap around soon

ICMP, TCP, UDP = 1, 6, 17
IPV4, ARP = 0x0800, 0x0806


def location(job: int, rank: int) -> Location:
    port = 4 * (job - JOBS[0][0]) + rank + 1
    return Location(port, 0x020000000000 + port, 0x0A000000 + port, 4000 + port)


def stages() -> Stages:
    """All that the controller writes: both jobs, one that forms, hosts and a route."""
    route = TableEntry(
        "SwitchIngress.forward.routes",
        {"destination": (NETWORK, 16)},
        "SwitchIngress.forward.forward",
        {"port": HOSTS[0].port, "source_mac": SWITCH_MAC, "destination_mac": HOSTS[0].mac},
    )
    result: Stages = (*local(SWITCH, SWITCH_MAC), (Update(Action.INSERT, route),))
    for each in HOSTS:
        result += host(each, None, SWITCH_MAC)
    for number, (job, generation, ranks) in enumerate(JOBS):
        first = 10 * number
        lease = Lease(
            job, 1 + number, tuple(range(first + 1, first + 1 + ranks)), range(first, first + SLOTS)
        )
        result += opening(lease, generation)
        result += admission(lease, generation, [location(job, rank) for rank in range(ranks)])
    return result + opening(Lease(FORMING[0], 9, (99,), range(30, 31)), FORMING[1])


# ------------------------------------------------------------------------------------ frames


def ethernet(kind: int, payload: bytes, source: int = 0x020000000001, destination: int = SWITCH_MAC) -> bytes:
    return destination.to_bytes(6, "big") + source.to_bytes(6, "big") + kind.to_bytes(2, "big") + payload


def ipv4(
    source: int,
    destination: int,
    protocol: int,
    payload: bytes,
    *,
    ttl: int = 64,
    fragment: int = 0,
    options: bytes = b"",
    version: int = 4,
) -> bytes:
    """Flags and offset are both in `fragment`; RFC 791."""
    size = 20 + len(options)
    head = bytes([version << 4 | size // 4, 0]) + (size + len(payload)).to_bytes(2, "big") + b"\x12\x34"
    head += fragment.to_bytes(2, "big") + bytes([ttl, protocol])
    tail = source.to_bytes(4, "big") + destination.to_bytes(4, "big") + options
    return head + checksum(head + b"\0\0" + tail).to_bytes(2, "big") + tail + payload


def udp(source: int, destination: int, payload: bytes) -> bytes:
    ports = source.to_bytes(2, "big") + destination.to_bytes(2, "big")
    return ports + (8 + len(payload)).to_bytes(2, "big") + b"\0\0" + payload


def arp(operation: int, target: int, hardware: int = 1) -> bytes:
    """RFC 826; a request of job 5's first rank."""
    sender = location(5, 0)
    head = hardware.to_bytes(2, "big") + b"\x08\x00\x06\x04" + operation.to_bytes(2, "big")
    return ethernet(
        ARP,
        head + sender.mac.to_bytes(6, "big") + sender.address.to_bytes(4, "big") + bytes(6)
        + target.to_bytes(4, "big") + bytes(18),
    )  # fmt: skip


MARKER: Packet = (30, arp(1, SWITCH))


class Traffic:
    """Random packets. It knows roughly where each slot stands, so that most contributions count."""

    def __init__(self, build: Build, rng: Random) -> None:
        self.build, self.rng = build, rng
        self.numbers = np.random.default_rng(rng.getrandbits(64))
        self.chunks = {
            (job, slot, version): (FIRST_CHUNK, constants.OP_SUM)
            for job, _, _ in JOBS
            for slot in range(SLOTS)
            for version in range(constants.VERSIONS)
        }
        self.sent: list[Packet] = []

    def packet(self) -> Packet:
        kinds = [
            (60, self.contribution),
            (8, self.again),
            (5, self.stale),
            (5, self.foreign),
            (4, self.odd_fields),
            (4, self.bent),
            (3, self.cut),
            (2, self.odd_ip),
            (3, self.hello),
            (3, self.address_request),
            (3, self.ping),
            (6, self.forwarded),
            (1, self.noise),
        ]
        [kind] = self.rng.choices([k for _, k in kinds], [weight for weight, _ in kinds])
        packet = kind()
        self.sent = [*self.sent[-40:], packet]
        return packet

    def contribution(self) -> Packet:
        """To a slot's chunk, or at times to the next one."""
        rng = self.rng
        job, _, ranks = rng.choice(JOBS)
        place = job, rng.randrange(SLOTS), rng.randrange(constants.VERSIONS)
        chunk, op = self.chunks[place]
        if rng.random() < 1 / (ranks + 2):
            chunk, op = (chunk + rng.choice([1, 1, 1, 7, 2**31 - 1])) % 2**32, rng.randrange(3)
            self.chunks[place] = chunk, op
        elif rng.random() < 0.03:
            op = rng.randrange(3)
        return self.frame(job, rng.randrange(ranks), slot=place[1], version=place[2], chunk=chunk, op=op)

    def again(self) -> Packet:
        return self.rng.choice(self.sent) if self.sent else self.contribution()

    def stale(self) -> Packet:
        rng = self.rng
        job, _, ranks = rng.choice(JOBS)
        place = job, rng.randrange(SLOTS), rng.randrange(constants.VERSIONS)
        chunk, op = self.chunks[place]
        old = (chunk - rng.choice([1, 2, 2**31 - 1, 2**31])) % 2**32
        return self.frame(job, rng.randrange(ranks), slot=place[1], version=place[2], chunk=old, op=op)

    def foreign(self) -> Packet:
        """Another job, generation or rank, or a sender that is not where that rank is."""
        rng = self.rng
        fields = rng.choice(
            [
                {"job": rng.getrandbits(16)},
                {"generation": rng.getrandbits(64)},
                {"generation": 0},
                {"rank": rng.randrange(256)},
                {"job": FORMING[0], "generation": FORMING[1]},
                {},
            ]
        )
        sender = rng.choice(
            [None, location(5, 1), Location(1, 5, STRANGER, 4001), Location(9, 5, 0x0A000001, 9)]
        )
        return self.frame(5, rng.randrange(3), sender, **fields)

    def odd_fields(self) -> Packet:
        rng = self.rng
        name, bits = rng.choice(
            [("magic", 16), ("kind", 8), ("op", 8), ("lane_count", 16), ("version", 8), ("slot", 16)]
        )
        return self.frame(5, 0, **{name: rng.choice([rng.getrandbits(bits), rng.randrange(6)])})

    def bent(self) -> Packet:
        """A bit of a header is another one."""
        port, frame = self.contribution()
        at = self.rng.randrange(8 * 66)
        changed = bytearray(frame)
        changed[at // 8] ^= 1 << at % 8
        return port, bytes(changed)

    def cut(self) -> Packet:
        """Shorter or longer than its headers say."""
        port, frame = self.contribution()
        rng = self.rng
        length = rng.choice([rng.randrange(1, 80), rng.randrange(1, len(frame)), len(frame) - 1])
        return port, rng.choice([frame[:length], frame + rng.randbytes(rng.randrange(1, 30))])

    def odd_ip(self) -> Packet:
        rng = self.rng
        where = location(5, 1)
        datagram = udp(where.udp_port, constants.AGGREGATION_PORT, self.datagram(5, 1))
        destination = rng.choice([SWITCH, HOSTS[0].address])
        odd = rng.choice(
            [
                ipv4(where.address, destination, UDP, datagram, fragment=rng.choice([1, 0x2000, 0x4000])),
                ipv4(where.address, destination, UDP, datagram, options=b"\1\1\1\0"),
                ipv4(where.address, destination, UDP, datagram, version=6),
                ipv4(where.address, destination, UDP, datagram, ttl=0),
            ]
        )
        return where.port, ethernet(IPV4, odd)

    def hello(self) -> Packet:
        rng = self.rng
        job, generation = rng.choice([FORMING, FORMING, (FORMING[0], 43), JOBS[0][:2]])
        sender = Location(
            rng.randrange(1, 40), 0x02AA00000000 + rng.randrange(9), 0x0A000300 + rng.randrange(9), 77
        )
        fields: dict[str, int] = {"kind": constants.KIND_HELLO, "job": job, "generation": generation}
        return self.frame(5, 0, sender, **fields, chunk=rng.getrandbits(32))

    def address_request(self) -> Packet:
        rng = self.rng
        return rng.randrange(1, 40), arp(
            rng.choice([1, 1, 1, 2, 0]), rng.choice(ADDRESSES), rng.choice([1, 1, 6])
        )

    def ping(self) -> Packet:
        rng = self.rng
        message = bytearray([rng.choice([8, 8, 8, 0, 3]), rng.choice([0, 0, 0, 1]), 0, 0])
        message += rng.randbytes(rng.randrange(60))
        message[2:4] = checksum(message).to_bytes(2, "big")
        where = location(5, 0)
        return where.port, ethernet(IPV4, ipv4(where.address, rng.choice(ADDRESSES), ICMP, bytes(message)))

    def forwarded(self) -> Packet:
        """Plain IPv4 to hosts, to nowhere, to the switch; also aggregation packets that pass through."""
        rng = self.rng
        port = rng.choice([53, constants.AGGREGATION_PORT])
        payload = rng.choice(
            [
                udp(rng.getrandbits(16), port, rng.randbytes(rng.randrange(90))),
                udp(4001, constants.AGGREGATION_PORT, self.datagram(5, 0)),
                rng.randbytes(rng.randrange(40)),
            ]
        )  # fmt: skip
        protocol = rng.choice([UDP, UDP, TCP, 89])
        ttl = rng.choice([0, 1, 2, 64, 255])
        frame = ethernet(IPV4, ipv4(0x0A000001, rng.choice(ADDRESSES), protocol, payload, ttl=ttl))
        return rng.randrange(1, 40), frame

    def noise(self) -> Packet:
        rng = self.rng
        kind = rng.choice([IPV4, ARP, 0x86DD, rng.getrandbits(16)])
        return rng.randrange(1, 40), ethernet(kind, rng.randbytes(rng.randrange(90)))

    def frame(self, job: int, rank: int, sender: Location | None = None, /, **fields: int) -> Packet:
        """A contribution of a rank, sent from where it is unless `sender` says otherwise."""
        where = sender or location(job, rank)
        datagram = udp(where.udp_port, constants.AGGREGATION_PORT, self.datagram(job, rank, **fields))
        return where.port, ethernet(IPV4, ipv4(where.address, SWITCH, UDP, datagram), where.mac)

    def datagram(self, job: int, rank: int, /, **fields: int) -> bytes:
        packet = np.zeros(1, datagram_dtype(self.build))
        values = {
            "magic": constants.MAGIC,
            "kind": constants.KIND_CONTRIBUTION,
            "lane_count": self.build.lanes,
            "job": job,
            "generation": GENERATIONS[job],
            "rank": rank,
        }
        for name, value in {**values, **fields}.items():
            packet[name] = value
        lanes = self.numbers.integers(0, 2**32, self.build.lanes, np.uint32)
        edges = self.numbers.random(self.build.lanes) < 0.3
        extremes = np.array([0, 1, 2**31 - 1, 2**31, 2**32 - 1], np.uint32)
        lanes[edges] = self.numbers.choice(extremes, int(edges.sum()))
        packet["lanes"] = lanes
        return packet.tobytes()
