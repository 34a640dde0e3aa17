"""Headers as Python integers: the reference models' own view of packets."""

from __future__ import annotations

Layout = list[tuple[str, int]]  # (field, width in bits)


def pack(layout: Layout, values: dict[str, int]) -> bytes:
    """Fields one after the other; missing ones are zero. Values are cut to their width."""
    number, bits = 0, 0
    for name, width in layout:
        number = number << width | (values.get(name, 0) & ((1 << width) - 1))
        bits += width
    assert bits % 8 == 0
    return number.to_bytes(bits // 8, "big")


def unpack(layout: Layout, data: bytes) -> dict[str, int]:
    """The fields of the packet's first bytes."""
    bits = sum(width for _, width in layout)
    number = int.from_bytes(data[: bits // 8], "big")
    out = {}
    for name, width in layout:
        bits -= width
        out[name] = (number >> bits) & ((1 << width) - 1)
    return out
