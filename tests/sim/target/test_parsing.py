"""Parser and stacks, against a parser written by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from switchreduce.sim.target import Switch

REPORT_BYTES = 12
TOO_SHORT, OUT_OF_BOUNDS, HEADER_TOO_SHORT, BAD_MAGIC = 1, 3, 4, 9


@dataclass
class Parsed:
    """What of a packet was extracted, by hand."""

    fault: int = 0
    first: bytes | None = None
    labels: list[bytes | None] = field(default_factory=lambda: [None] * 4)
    options: bytes | None = None
    word: bytes | None = None
    depth: int = 0
    seen: int = 0
    at: int = 0


def parse(data: bytes) -> Parsed:
    p = Parsed()

    def take(n: int) -> bytes | None:
        if len(data) - p.at < n:
            p.fault = TOO_SHORT
            return None
        p.at += n
        return data[p.at - n : p.at]

    def take_word() -> None:
        p.word = take(16)

    p.first = take(4)
    if p.first is None:
        return p
    if p.first[2] != 0x5A:
        p.fault = BAD_MAGIC
        return p
    kind, number, op = p.first[0] >> 4, int.from_bytes(p.first[:2], "big") & 0xFFF, p.first[3]
    if kind == 1:
        while True:
            if p.depth == 4:
                p.fault = OUT_OF_BOUNDS
                return p
            label = take(4)
            if label is None:
                return p
            p.labels[p.depth] = label
            p.depth += 1
            if label[2] & 1:
                return p
    elif kind == 2 and number & 0xF00 == 0x100:
        if len(data) - p.at < 1:
            p.fault = TOO_SHORT
            return p
        length = data[p.at]
        if len(data) - p.at < 2 + length:
            p.fault = TOO_SHORT
        elif length > 16:
            p.fault = HEADER_TOO_SHORT
        else:
            p.options = take(2 + length)
            take_word()
    elif kind in (2, 3):
        take_word()
    elif kind == 4:
        if len(data) - p.at < 4:
            p.fault = TOO_SHORT
            return p
        p.seen = int.from_bytes(data[p.at : p.at + 4], "big")
        if p.seen >> 20 == 0xABC:
            take_word()
    elif kind == 5:
        if len(data) - p.at < op:
            p.fault = TOO_SHORT
            return p
        p.at += op
        take_word()
    return p


def expected(data: bytes) -> bytes:
    p = parse(data)
    flags = [p.first, p.labels[0], p.labels[3], p.options, p.word]
    valid = sum((x is not None) << (4 - k) for k, x in enumerate(flags))
    report = b"".join(
        [
            p.fault.to_bytes(4, "big"),
            len(data).to_bytes(2, "big"),
            bytes([p.depth, valid]),
            p.seen.to_bytes(4, "big"),
        ]
    )
    labels = p.labels
    if p.first is not None and p.first[0] >> 4 == 1:
        labels = shuffle(labels, p.first[3])
    parts = [report, p.first, *labels, p.options, p.word, data[p.at :]]
    return b"".join(x for x in parts if x is not None)


def shuffle(labels: list[bytes | None], op: int) -> list[bytes | None]:
    """P4_16's stack operations; new elements of push_front are invalid, which setValid then clears."""
    none: list[bytes | None] = [None]
    if op == 1:
        return [(77 << 12).to_bytes(4, "big"), *labels[:3]]
    if op == 2:
        return labels[1:] + none
    if op == 3:
        return none * 2 + labels[:2]
    if op == 4:
        return labels[3:] + none * 3
    if op == 5:
        return [labels[0], None, labels[0], labels[3]]
    if 16 <= op < 20:
        ttl = (labels[0][3] if labels[0] else 0) + 1 & 0xFF
        target = labels[op - 16]
        return [*labels[: op - 16], None if target is None else target[:3] + bytes([ttl]), *labels[op - 15 :]]
    return labels


first_headers = st.builds(
    lambda kind, number, magic, op: (kind << 12 | number).to_bytes(2, "big") + bytes([magic, op]),
    st.integers(0, 6),
    st.one_of(st.integers(0, 0xFFF), st.sampled_from([0x100, 0x1FF])),
    st.sampled_from([0x5A] * 9 + [0x5B]),
    st.one_of(st.integers(0, 20), st.integers(0, 255)),
)
labels = st.lists(
    st.builds(lambda a, bottom, c: a + bytes([bottom, c]), st.binary(min_size=2, max_size=2),
              st.sampled_from([0, 0, 1, 0xFE]), st.integers(0, 255)), max_size=6
).map(b"".join)  # fmt: skip
options = st.builds(lambda n, rest: bytes([n]) + rest, st.integers(0, 20), st.binary(max_size=40))
bodies = st.one_of(
    labels, options, st.binary(max_size=60), st.binary(max_size=20).map(lambda b: b"\xab\xc5" + b)
)


@settings(max_examples=500, deadline=None)
@given(first_headers, bodies)
def test_parser_and_stacks_agree_with_the_model(
    switch_of: Callable[[str], Switch], first: bytes, body: bytes
) -> None:
    data = first + body
    [(port, frame)] = switch_of("parsing").process(0, data)
    assert port == 2
    assert frame == expected(data)


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=3))
def test_a_packet_too_short_for_anything_goes_on_to_ingress(
    switch_of: Callable[[str], Switch], data: bytes
) -> None:
    [(_, frame)] = switch_of("parsing").process(0, data)
    assert frame == expected(data)
    assert len(frame) == REPORT_BYTES + len(data)
