"""NumPy views of the program's headers, derived from its compiled form.

There is no second list of offsets: a field that moves in ``headers.p4`` moves here with the next build.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from switchreduce.p4.builds import Build

LANE_BYTES = 4

# The headers of an aggregation packet from the outside in, by instance name in the program.
ENVELOPE = ("ethernet", "ipv4", "udp")
PAYLOAD = ("slot", "lanes")


def header_fields(build: Build, instance: str) -> list[tuple[str, int]]:
    """Name and width in bits of the fields of header `instance` ("slot", "ipv4", ...), in wire order."""
    program = build.program
    type_name = next(h["header_type"] for h in program["headers"] if h["name"] == instance)
    fields = next(t["fields"] for t in program["header_types"] if t["name"] == type_name)
    return [(name, width) for name, width, *_ in fields]


def header_bytes(build: Build, instance: str) -> int:
    """Size of a header in bytes."""
    return sum(width for _, width in header_fields(build, instance)) // 8


@cache
def header_dtype(build: Build, instance: str) -> np.dtype:
    """The dtype of header `instance` ("slot", "ipv4", ...) on the wire, big-endian.

    Fields of 8, 16, 32 or 64 bits become unsigned integers, other whole-byte fields byte strings (a MAC
    is ``V6``), and fields that share a byte are left out, as nothing here needs them.
    """
    names: list[str] = []
    formats: list[str] = []
    offsets: list[int] = []
    position = 0
    for name, width in header_fields(build, instance):
        if position % 8 == 0 and width % 8 == 0:
            names.append(name)
            formats.append(f">u{width // 8}" if width in (8, 16, 32, 64) else f"V{width // 8}")
            offsets.append(position // 8)
        position += width
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": position // 8})


@cache
def datagram_dtype(build: Build) -> np.dtype:
    """A UDP payload: the slot header's fields and ``lanes``, ``build.lanes`` big-endian uint32."""
    slot = header_dtype(build, "slot")
    names = list(slot.names or ())
    if header_bytes(build, "lanes") != LANE_BYTES * build.lanes:
        raise ValueError(f"build {build.name}: the lanes header does not hold {build.lanes} lanes")
    return np.dtype(
        {
            "names": [*names, "lanes"],
            "formats": [*(slot[name] for name in names), np.dtype((">u4", (build.lanes,)))],
            "offsets": [*(_offset(slot, name) for name in names), slot.itemsize],
            "itemsize": slot.itemsize + LANE_BYTES * build.lanes,
        }
    )


def _offset(dtype: np.dtype, name: str) -> int:
    assert dtype.fields is not None
    return dtype.fields[name][1]


def datagram_bytes(build: Build) -> int:
    """Size of every datagram of `build`'s protocol, hellos included."""
    return datagram_dtype(build).itemsize


def envelope_bytes(build: Build) -> int:
    """Ethernet, IPv4 and UDP headers around a datagram."""
    return sum(header_bytes(build, name) for name in ENVELOPE)
