"""For each small program: entries and random packets that reach every construct it is about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from p4.v1.p4runtime_pb2 import Entity

from switchreduce.controller.entities import Schema
from switchreduce.p4.builds import Build
from switchreduce.sim.target import Exact, Lpm, Range, Ternary

from ..p4runtime import conftest as p4runtime_tests
from ..target import conftest as target_tests
from .entries import Key, clone_session, multicast_group, table_entry
from .pair import MOST_AT_ONCE, Packet


@dataclass(frozen=True)
class Case:
    """A program and its packets, `at_once` of which may be on the way; `marker`: see Pair.exchange."""

    name: str
    packet: Callable[[Random], Packet]
    marker: Packet
    entries: Callable[[Schema, Random], list[Entity]] = lambda schema, rng: []
    at_once: int = MOST_AT_ONCE
    any_order: bool = False
    folder: Path = target_tests.PROGRAMS

    @property
    def build(self) -> Build:
        stem = self.folder / self.name
        return Build(self.name, 0, "", stem.with_suffix(".json"), stem.with_suffix(".p4info.txtpb"))


def edgy(rng: Random, bits: int) -> int:
    """A number of `bits` bits; often one where carries, signs and shifts change their mind."""
    top = 1 << bits
    pick = rng.randrange(4)
    if pick == 0:
        return rng.choice([0, 1, 2, top - 1, top - 2, top // 2, top // 2 - 1]) % top
    if pick == 1:
        return (1 << rng.randrange(bits)) - rng.randrange(2)
    return rng.getrandbits(bits)


def numbers(rng: Random, *widths: int) -> bytes:
    """Edgy numbers side by side; the widths add up to whole bytes."""
    value = 0
    for width in widths:
        value = value << width | edgy(rng, width)
    return value.to_bytes(sum(widths) // 8, "big")


# ------------------------------------------------------------------------------------ arithmetic

_OPERANDS = [200, 200, 64, 64, 32, 32, 8, 8, 32, 32, 256, 256, 512, 512]


def arithmetic(rng: Random) -> Packet:
    return rng.randrange(8), numbers(rng, *_OPERANDS) + rng.randbytes(rng.randrange(20))


# ------------------------------------------------------------------------------------ matching

_BYTES = [0, 1, 0x0F, 0x10, 0x12, 0x80, 0xFF]
_ADDRESSES = [0, 0x0A000000, 0x0A000001, 0x0A0B0C0D, 0x0A0BFFFF, 0x0B000000, 0xFFFFFFFF]
_SHORTS = [0, 5, 6, 7, 9, 10, 1000, 65535]
_WIDE = [0, 1, 1 << 71, (1 << 72) - 1]


def matching(rng: Random) -> Packet:
    fields = (
        (rng.choice(_BYTES), 1),
        (rng.choice(_ADDRESSES) ^ rng.choice([0, 0, 1, 1 << 20]), 4),
        (rng.choice(_SHORTS), 2),
        (rng.choice(_WIDE), 9),
        (rng.randrange(6), 1),
    )
    return rng.randrange(8), b"".join(value.to_bytes(size, "big") for value, size in fields)


def matching_entries(schema: Schema, rng: Random) -> list[Entity]:
    entities = []

    def add(table: str, key: tuple[Key, ...], action: str, *params: int, priority: int = 0) -> None:
        if (table, key) not in taken:
            taken.add((table, key))
            entities.append(table_entry(schema, table, key, action, *params, priority=priority))

    taken: set[object] = set()
    for k in range(20):
        exact = (Exact(rng.choice(_BYTES)), Exact(rng.choice(_WIDE)))
        action, params = rng.choice(
            [("I.answer", (edgy(rng, 32),)), ("I.twice", (edgy(rng, 16), edgy(rng, 72))), ("I.stop", ())]
        )
        add("I.exact_wide", exact, action, *params)
        add("I.longest", (_prefix(rng),), "I.counted", edgy(rng, 32))
        add("I.exact_longest", (Exact(rng.choice(_BYTES)), _prefix(rng)), "I.answer", 100 + k)
        mask = rng.choice([0x80, 0x0F, 0xF0, 0xFF])
        masked = rng.choice([None, Ternary(rng.choice(_BYTES) & mask, mask)])
        port = rng.choice([None, Exact(rng.choice(_SHORTS))])
        add("I.masks", (masked, _prefix(rng), port), "I.answer", 200 + k, priority=1 + k)
        low, high = sorted(rng.choices(_SHORTS, k=2))
        within = None if (low, high) == (0, 65535) else Range(low, high)
        add("I.ranges", (within, masked, Exact(1)), "I.answer", 300 + k, priority=100 - k)
    return entities


def _prefix(rng: Random) -> Lpm | None:
    length = rng.choice([0, 7, 8, 12, 24, 31, 32])
    if not length:
        return None
    keep = (1 << 32) - (1 << (32 - length))
    return Lpm(rng.choice(_ADDRESSES) & keep, length)


# ------------------------------------------------------------------------------------ parsing


def parsing(rng: Random) -> Packet:
    kind = rng.randrange(7)
    number = rng.choice([0x100, 0x1FF, rng.getrandbits(12)])
    magic = 0x5B if rng.random() < 0.05 else 0x5A
    op = rng.choice([rng.randrange(21), rng.getrandbits(8)])
    body = rng.choice([_labels, _options, _peeked, _anything])(rng)
    frame = (kind << 12 | number).to_bytes(2, "big") + bytes([magic, op]) + body
    if rng.random() < 0.15:
        frame = frame[: rng.randrange(1, len(frame) + 1)]
    return rng.randrange(8), frame


def _labels(rng: Random) -> bytes:
    labels = [
        rng.randbytes(2) + bytes([rng.choice([0, 0, 1, 0xFE]), rng.getrandbits(8)])
        for _ in range(rng.randrange(7))
    ]
    return b"".join(labels)


def _options(rng: Random) -> bytes:
    return bytes([rng.randrange(20)]) + rng.randbytes(rng.randrange(40))


def _peeked(rng: Random) -> bytes:
    return b"\xab\xc5" + rng.randbytes(rng.randrange(24))


def _anything(rng: Random) -> bytes:
    return rng.randbytes(rng.randrange(60))


# ------------------------------------------------------------------------------------ state


def state(rng: Random) -> Packet:
    op = rng.choice([0, 1, 2, rng.getrandbits(8)])
    index = rng.choice([*range(10), 10, 0x7FFFFFFF, 0xFFFFFFFF])
    frame = bytes([op]) + index.to_bytes(4, "big") + numbers(rng, 48)
    if op < 2:
        sums = bytearray(numbers(rng, 4, 12, 16, 24, 8))
        if rng.random() < 0.5:
            sums[2:4] = checksum(sums[:2] + sums[4:]).to_bytes(2, "big")
        frame += sums
    elif op == 2:
        frame += numbers(rng, 256)
    return rng.randrange(8), frame + rng.randbytes(rng.randrange(60))


def checksum(data: bytes | bytearray) -> int:
    """The Internet checksum (RFC 1071)."""
    data = bytes(data) + b"\0" * (len(data) % 2)
    total = sum(int.from_bytes(data[k : k + 2], "big") for k in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


# ------------------------------------------------------------------------------------ traffic

_UNICAST, _MULTICAST, _CLONE, _TRUNCATE, _AROUND, _CLONE_AT_EGRESS = 0, 1, 2, 4, 7, 8


def traffic(rng: Random) -> Packet:
    op = rng.randrange(10)
    group = rng.choice([3, 4, 99]) if op == _MULTICAST else rng.choice([0, 7, 8, 12])
    length = rng.choice([0, 5, 14, 50, 60, 500, 60000])
    rounds = rng.randrange(6)
    order = bytes([op, rng.choice([1, 2, 6, 9])]) + group.to_bytes(2, "big") + length.to_bytes(2, "big")
    return rng.randrange(8), order + bytes([rounds, 0]) + rng.randbytes(rng.randrange(100))


def traffic_entries(schema: Schema, rng: Random) -> list[Entity]:
    return [
        multicast_group(3, [(4, 40), (5, 50), (9, 90), (7, 41)]),
        multicast_group(4, [(6, 65535)]),
        clone_session(7, [(8, 80), (2, 20)]),
        clone_session(8, [(6, 1)]),
    ]


def crossings(rng: Random) -> Packet:
    def flags() -> int:
        return rng.getrandbits(7) & rng.getrandbits(7)

    order = bytes([flags(), flags() & 0x1F, rng.choice([1, 2, 6]), rng.choice([3, 4, 99])])
    order += bytes([rng.choice([7, 8, 12]), rng.randrange(3), rng.choice([0, 5, 14, 40, 60, 255]), 0])
    return rng.randrange(8), order + rng.randbytes(rng.randrange(60))


def crossings_entries(schema: Schema, rng: Random) -> list[Entity]:
    return [
        multicast_group(3, [(4, 1), (5, 2)]),
        multicast_group(4, [(6, 7)]),
        clone_session(7, [(8, 80)]),
        clone_session(8, [(6, 1)]),
    ]


# ------------------------------------------------------------------------------------ lanes


def lanes_wide(rng: Random) -> Packet:
    op = rng.randrange(7)
    # what a read beyond the last cell (199) gives is left open, so that fetching from there proves nothing
    cell = rng.choice([0, 1, 2, 199] if op == 4 else [0, 1, 2, 199, 200, 255])
    request = bytes([op, cell, 0, 0])
    if rng.random() < 0.5:
        return rng.randrange(8), request + rng.randbytes(1024)
    return rng.randrange(8), request + b"".join(numbers(rng, 32) for _ in range(256))


# ------------------------------------------------------------------------------------ mixture


def mixture(rng: Random) -> Packet:
    port = rng.choice([1, 2, 3, 9, 13])
    head = bytes([rng.choice([0, 1, 2, 3, rng.getrandbits(8)]), port]) + numbers(rng, 32, 32)
    pair = numbers(rng, 16, 16)
    rest = rng.choice([pair + pair, rng.randbytes(rng.randrange(8, 40))]) + rng.randbytes(rng.randrange(3))
    parsed = {0: 0, 1: 4 if port < 8 else 0, 2: 8, 3: 8}[head[0] & 3]
    check = checksum(head + rest[parsed:]) if rng.random() < 0.5 else edgy(rng, 16)
    return rng.randrange(8), head + check.to_bytes(2, "big") + rest


def mixture_entries(schema: Schema, rng: Random) -> list[Entity]:
    def add(key: tuple[Key, ...], action: str, *params: int, priority: int) -> Entity:
        return table_entry(schema, "I.marks", key, action, *params, priority=priority)

    return [
        add((Ternary(1, 1), None, None), "I.set_mark", 5, priority=10),
        add((Ternary(0, 1), Range(0, 1 << 31), Exact(3)), "I.set_mark", 6, priority=9),
        add((None, Range(1 << 31, (1 << 32) - 1), Exact(1)), "I.leave", priority=20),
        add((Ternary(0xFF000000, 0xFF000000), None, None), "I.refuse", priority=15),
        add((None, Range(7, 1 << 20), None), "NoAction", priority=30),
    ]


# ------------------------------------------------------------------------------------ kitchen


def kitchen(rng: Random) -> Packet:
    destination = rng.choice([1, 2, 3, 4, 5, 99])
    kind = rng.choice([0x0800, 0x0800, 0x0806, 0x86DD])
    frame = destination.to_bytes(6, "big") + rng.randbytes(6) + kind.to_bytes(2, "big")
    if kind == 0x0800:
        address = rng.choice(_ADDRESSES)
        frame += (
            b"\x45\0" + rng.randbytes(6) + bytes([rng.choice([0, 1, 5, 64, 255]), rng.choice([1, 6, 17])])
        )
        frame += rng.randbytes(2) + rng.choice(_ADDRESSES).to_bytes(4, "big") + address.to_bytes(4, "big")
    return rng.randrange(1, 8), frame + rng.randbytes(rng.randrange(40))


def kitchen_entries(schema: Schema, rng: Random) -> list[Entity]:
    def add(table: str, key: tuple[Key, ...], action: str, *params: int, priority: int = 0) -> Entity:
        return table_entry(schema, f"Forward.{table}", key, action, *params, priority=priority)

    return [
        add("l2", (Exact(1),), "Forward.forward", 3),
        add("l2", (Exact(2),), "Forward.multicast", 7),
        add("l2", (Exact(3),), "Forward.to_controller", 99),
        add("l2", (Exact(4),), "Forward.forward", 511),
        add("l2", (Exact(5),), "NoAction"),
        add("routes", (Lpm(0x0A000000, 8),), "Forward.forward", 4),
        add("routes", (Lpm(0x0A0B0000, 16),), "Forward.rewrite_and_forward", 5, 0xAABBCCDDEEFF),
        add("routes", (Lpm(0xFFFFFFFF, 32),), "Forward.drop"),
        add(
            "acl",
            (Ternary(0x0A000000, 0xFF000000), Range(1, 5), Exact(6), Exact(1)),
            "Forward.drop",
            priority=5,
        ),
        add("acl", (None, Range(5, 255), None, Exact(2)), "Forward.drop", priority=3),
        add("acl", (None, Range(5, 255), Exact(17), Exact(2)), "NoAction", priority=4),
        multicast_group(7, [(1, 1), (2, 2), (3, 0)]),
    ]


CASES = [
    Case("arithmetic", arithmetic, (1, bytes(276))),
    Case("matching", matching, (1, bytes(16) + b"\5"), matching_entries),
    Case("parsing", parsing, (1, b"\0\0\x5a\0")),
    Case("state", state, (1, b"\x09" + bytes(10))),
    # one at a time: what goes round comes out behind packets that came later, how far is left open
    Case("traffic", traffic, (1, bytes([_UNICAST, 7, 0, 0, 0, 0, 0, 0])), traffic_entries, at_once=1),
    Case("crossings", crossings, (1, b"\0\0\7" + bytes(5)), crossings_entries, at_once=1, any_order=True),
    Case("lanes_wide", lanes_wide, (1, bytes([6, 0, 0, 0]) + bytes(1024))),
    Case("mixture", mixture, (1, bytes([0, 1]) + bytes(10)), mixture_entries),
    Case(
        "kitchen",
        kitchen,
        (3, bytes([0, 0, 0, 0, 0, 1]) + bytes(8)),
        kitchen_entries,
        folder=p4runtime_tests.PROGRAMS,
    ),
]
