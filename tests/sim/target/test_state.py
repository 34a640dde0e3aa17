"""Registers, counters, hashes and checksums, against models of their own."""

from __future__ import annotations

import binascii
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchreduce.sim.target import Switch

from .bits import pack, unpack

BASE = [("op", 8), ("index", 32), ("value", 48)]
SUMS = [("x", 4), ("y", 12), ("check", 16), ("z", 24), ("w", 8)]
WIDE = [("data", 256)]
HASHES = [
    ("crc16", 16), ("crc32", 32), ("csum", 16), ("id", 64), ("folded", 16), ("bounded", 32), ("bad", 8),
    ("with_payload", 16),
]  # fmt: skip
ODD = 0x1ABC


def csum16(data: bytes) -> int:
    """RFC 1071."""
    if len(data) % 2:
        data += b"\0"
    total = sum(int.from_bytes(data[k : k + 2], "big") for k in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def crc16(data: bytes) -> int:
    """CRC-16/ARC, bit by bit."""
    value = 0
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0xA001 if value & 1 else 0)
    return value


def xor16(data: bytes) -> int:
    value = 0
    for k in range(0, len(data), 2):
        value ^= int.from_bytes(data[k : k + 2].ljust(2, b"\0"), "big")
    return value


values = st.integers(0, 2**48 - 1)


@settings(max_examples=200, deadline=None)
@given(values, st.integers(0, 255), st.binary(max_size=70))
def test_hashes(switch_of: Callable[[str], Switch], value: int, op: int, payload: bytes) -> None:
    op = 3 + op % 253
    switch = switch_of("state")
    switch.registers["I.small"].write(3, 0)
    [(_, frame)] = switch.process(0, pack(BASE, {"op": op, "index": 3, "value": value}) + payload)
    got = unpack(BASE + HASHES, frame)
    number, index = value.to_bytes(6, "big"), (3).to_bytes(4, "big")
    bits = (value << 13 | ODD) << 3
    assert got["crc16"] == crc16(bits.to_bytes(8, "big"))
    assert got["crc32"] == zlib.crc32(index + number)
    assert got["csum"] == csum16(number + bytes([op]))
    assert got["id"] == value
    assert got["folded"] == xor16(number + bytes([op]))
    assert got["bounded"] == 1000 + binascii.crc32(number) % 77
    # the checksum is computed on the way out, with the value that came from the register, and without the
    # fields of a header that is not there
    assert got["with_payload"] == csum16(bytes([op]) + bytes(6) + payload)
    assert frame[len(pack(BASE + HASHES, {})) :] == payload


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 1),
    st.integers(0, 0xFFFF),
    st.integers(0, 2**48 - 1),
    st.booleans(),
    st.binary(max_size=31),
)
def test_checksums(
    switch_of: Callable[[str], Switch], op: int, check: int, fields: int, right: bool, payload: bytes
) -> None:
    switch = switch_of("state")
    sums = {"x": fields >> 44, "y": fields >> 32 & 0xFFF, "z": fields >> 8 & 0xFFFFFF, "w": fields & 0xFF}
    good = csum16(pack([("x", 4), ("y", 12), ("z", 24), ("w", 8)], sums))
    check = good if right else check
    packet = pack(BASE, {"op": op, "index": 9}) + pack(SUMS, {**sums, "check": check}) + payload
    switch.registers["I.small"].write(9, 0)
    [(_, frame)] = switch.process(0, packet)
    got = unpack(BASE + SUMS + HASHES, frame)
    assert got["bad"] == (op == 1 and check != good)
    assert got["check"] == (good if op == 0 else check)
    assert got["with_payload"] == csum16(bytes([op]) + bytes(6) + sums["z"].to_bytes(3, "big") + payload)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12), st.integers(0, 2**256 - 1)), max_size=20))
def test_registers_and_counters(switch_of, steps) -> None:  # type: ignore[no-untyped-def]
    switch = switch_of("state")
    small, large, seen = (switch.registers["I.small"], switch.registers["I.large"], switch.counters["I.seen"])
    for k in range(10):
        small.write(k, k)
        large.write(k, k << 200)
        seen.write(k, 0, 0)
    model = {(False, k): k for k in range(10)} | {(True, k): k << 200 for k in range(10)}
    counted = [[0, 0] for _ in range(13)]
    for wide, index, value in steps:
        packet = pack(BASE, {"op": 2 if wide else 5, "index": index, "value": value % 2**48})
        packet += pack(WIDE, {"data": value}) if wide else b""
        [(_, frame)] = switch.process(0, packet)
        got = unpack(BASE + WIDE, frame.ljust(60, b"\0"))
        assert got["data" if wide else "value"] == model.get((wide, index), 0)  # out of range: zero
        if index < 10:
            model[wide, index] = value if wide else value % 2**48
        counted[index][0] += 1
        counted[index][1] += len(packet)
    for k in range(10):
        assert small.read(k) == model[False, k]
        assert large.read(k) == model[True, k]
        assert list(seen.read(k)) == counted[k]


def test_an_index_beyond_32_bits_of_range_changes_nothing(switch_of: Callable[[str], Switch]) -> None:
    switch = switch_of("state")
    before = [switch.registers["I.small"].read(k) for k in range(10)]
    switch.process(0, pack(BASE, {"op": 5, "index": 0xFFFFFFFF, "value": 77}))
    assert [switch.registers["I.small"].read(k) for k in range(10)] == before


def test_the_control_plane_s_indexes_and_values_are_checked(switch_of: Callable[[str], Switch]) -> None:
    switch = switch_of("state")
    with pytest.raises(ValueError, match=r"cells 0\.\.9"):
        switch.registers["I.small"].read(10)
    with pytest.raises(ValueError, match="48 bits"):
        switch.registers["I.small"].write(0, 1 << 48)
    with pytest.raises(ValueError, match=r"cells 0\.\.9"):
        switch.counters["I.seen"].read(-1)
