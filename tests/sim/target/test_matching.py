"""Tables: match kinds, precedence, defaults, counters, and what the control plane may do to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchreduce.sim.target import (
    Entry,
    EntryExists,
    EntryNotFound,
    Exact,
    Lpm,
    Range,
    Switch,
    TableConst,
    TableFull,
    Ternary,
)

from .bits import pack, unpack

KEY = [("a", 8), ("b", 32), ("c", 16), ("d", 72), ("which", 8)]
ANSWER = [("value", 32), ("hit", 8), ("run", 8)]
WHICH = {"exact_wide": 0, "longest": 1, "exact_longest": 2, "masks": 3, "ranges": 4, "fixed": 5}


@pytest.fixture
def switch(switch_of: Callable[[str], Switch]) -> Iterator[Switch]:
    switch = switch_of("matching")
    reset(switch)
    return switch


def reset(switch: Switch) -> None:
    for table in switch.tables.values():
        if not table.is_const:
            table.clear()
        table.reset_default()


def ask(switch: Switch, table: str, **key: int) -> dict[str, int] | None:
    """The answer that a packet gets from one table, the key's `d` included; None where it was dropped."""
    out = switch.process(0, pack(KEY, {**key, "which": WHICH[table]}))
    if not out:
        return None
    got = unpack(KEY + ANSWER, out[0][1])
    return {name: got[name] for name in ("value", "hit", "run", "d")}


def answered(switch: Switch, table: str, **key: int) -> int:
    got = ask(switch, table, **key)
    assert got is not None
    return got["value"]


def test_exact_match_on_a_wide_key_runs_the_entry_s_action(switch: Switch) -> None:
    t = switch.tables["I.exact_wide"]
    d = 0xFF00_0000_0000_0000_01
    t.insert(Entry((Exact(1), Exact(d)), "I.answer", (5,)))
    t.insert(Entry((Exact(2), Exact(d)), "I.twice", (6, 1 << 71)))
    t.insert(Entry((Exact(3), Exact(d)), "I.stop"))
    assert ask(switch, "exact_wide", a=1, d=d) == {"value": 5, "hit": 0, "run": 1, "d": d}
    assert ask(switch, "exact_wide", a=2, d=d) == {"value": 12, "hit": 0, "run": 2, "d": 1 << 71}
    assert ask(switch, "exact_wide", a=3, d=d) is None  # exit: nothing after it undid the drop
    assert ask(switch, "exact_wide", a=1, d=d ^ 1 << 70) == {"value": 7, "hit": 0, "run": 1, "d": d ^ 1 << 70}
    t.set_default("I.twice", (9, 4))
    assert ask(switch, "exact_wide", a=9, d=0) == {"value": 18, "hit": 0, "run": 2, "d": 4}
    t.reset_default()
    assert t.default == ("I.answer", (7,))


def test_longest_prefix_wins_and_counts(switch: Switch) -> None:
    t = switch.tables["I.longest"]
    for length, value in ((0, 1), (8, 2), (24, 3), (32, 4)):
        t.insert(Entry((Lpm(0x0A0B0C0D, length),), "I.counted", (value,)))
    before = switch.counters["I.misses"].read(1)
    for b, value in ((0x0A0B0C0D, 4), (0x0A0B0C00, 3), (0x0A000000, 2), (0xFFFFFFFF, 1)):
        assert answered(switch, "longest", b=b) == value
    key = (Lpm(0x0A0B0C00, 24),)
    assert t.direct_counter(key) == (1, 17)
    t.modify(Entry(key, "I.counted", (8,)))
    assert answered(switch, "longest", b=0x0A0B0C77) == 8
    assert t.direct_counter(key) == (2, 34)
    t.set_direct_counter(key, 0, 10, 11)
    assert t.direct_counter(key) == (10, 11)
    t.delete((Lpm(0, 0),))
    missed = ask(switch, "longest", b=0xFFFFFFFF)
    assert missed is not None
    assert missed["hit"] == 0
    assert switch.counters["I.misses"].read(1) == (before[0] + 1, before[1] + 17)


def test_const_entries_come_in_the_program_s_order(switch: Switch) -> None:
    assert answered(switch, "fixed", a=0x12, c=7) == 1
    assert answered(switch, "fixed", a=0x12, c=10) == 2
    assert answered(switch, "fixed", a=0x22, c=7) == 3
    assert answered(switch, "fixed", a=0x22, c=8) == 99
    t = switch.tables["I.fixed"]
    assert t.is_const
    assert [e.priority for e in t.entries()] == [3, 2, 1]
    with pytest.raises(TableConst):
        t.insert(Entry((Ternary(0, 0), Range(0, 1)), "I.answer", (1,), 9))
    with pytest.raises(TableConst):
        t.set_default("I.answer", (1,))


MASKS = st.sampled_from([0, 0x80, 0x0F, 0xF0, 0xFF])
SMALL = st.sampled_from([0, 1, 0x0F, 0x80, 0x81, 0xFF])
ADDRESSES = st.sampled_from([0, 0x0A000000, 0x0A000001, 0x0B000000, 0xFFFFFFFF])
PORTS = st.sampled_from([0, 5, 6, 1000, 65535])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(SMALL, MASKS, ADDRESSES, st.sampled_from([0, 7, 8, 32]), PORTS, st.booleans()), max_size=12
    ),
    st.lists(st.tuples(SMALL, ADDRESSES, PORTS), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
)
def test_masks_prefixes_and_optional_fields_by_priority(switch_of, entries, packets, random) -> None:  # type: ignore[no-untyped-def]
    switch = switch_of("matching")
    reset(switch)
    t = switch.tables["I.masks"]
    priorities = random.sample(range(1, 1000), len(entries))
    rules = []
    for value, ((a, mask, b, length, c, any_c), priority) in enumerate(
        zip(entries, priorities, strict=True), 1
    ):
        key = (Ternary(a & mask, mask), Lpm(b, length), Ternary(0 if any_c else c, 0 if any_c else 0xFFFF))
        t.insert(Entry(key, "I.answer", (value,), priority))
        rules.append((priority, a, mask, b, length, None if any_c else c, value))
    for a, b, c in packets:
        hits = [
            (priority, value)
            for priority, ra, mask, rb, length, rc, value in rules
            if a & mask == ra & mask and b >> (32 - length) == rb >> (32 - length) and rc in (None, c)
        ]
        assert answered(switch, "masks", a=a, b=b, c=c) == (max(hits)[1] if hits else 0)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(PORTS, PORTS, SMALL, MASKS), max_size=8),
    st.lists(st.tuples(PORTS, SMALL), min_size=1, max_size=8),
)
def test_ranges(switch_of, entries, packets) -> None:  # type: ignore[no-untyped-def]
    switch = switch_of("matching")
    reset(switch)
    t = switch.tables["I.ranges"]
    rules = []
    for value, (x, y, a, mask) in enumerate(entries, 1):
        low, high = min(x, y), max(x, y)
        t.insert(Entry((Range(low, high), Ternary(a & mask, mask), Exact(1)), "I.answer", (value,), value))
        rules.append((low, high, a & mask, mask, value))
    for c, a in packets:
        hits = [value for low, high, ra, mask, value in rules if low <= c <= high and a & mask == ra]
        assert answered(switch, "ranges", c=c, a=a) == max(hits, default=0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=120))
def test_an_exact_table_is_a_dictionary(switch_of, steps) -> None:  # type: ignore[no-untyped-def]
    switch = switch_of("matching")
    reset(switch)
    t = switch.tables["I.exact_wide"]
    held: dict[int, int] = {}
    for k, (add, n) in enumerate(steps):
        key = (Exact(n & 3), Exact(n))
        if add and n not in held:
            t.insert(Entry(key, "I.answer", (k,)))
            held[n] = k
        elif not add and n in held:
            t.delete(key)
            del held[n]
    assert len(t) == len(held)
    for n in range(41):
        assert answered(switch, "exact_wide", a=n & 3, d=n) == held.get(n, 7)


def test_what_the_control_plane_gets_wrong_is_said(switch: Switch) -> None:
    t = switch.tables["I.exact_wide"]
    entry = Entry((Exact(1), Exact(2)), "I.answer", (1,))
    t.insert(entry)
    assert t.get(entry.key) == entry
    with pytest.raises(EntryExists):
        t.insert(entry)
    with pytest.raises(EntryNotFound):
        t.delete((Exact(1), Exact(3)))
    with pytest.raises(EntryNotFound):
        t.modify(Entry((Exact(1), Exact(3)), "I.answer", (1,)))
    for wrong, message in (
        (Entry((Exact(1),), "I.answer", (1,)), "2 fields"),
        (Entry((Exact(256), Exact(2)), "I.answer", (1,)), "8 bits"),
        (Entry((Exact(1), Ternary(2, 2)), "I.answer", (1,)), "wants Exact"),
        (Entry((Exact(1), Exact(9)), "I.none", (1,)), "no action"),
        (Entry((Exact(1), Exact(9)), "I.answer", ()), "1 parameters"),
        (Entry((Exact(1), Exact(9)), "I.answer", (1 << 32,)), "32 bits"),
    ):
        with pytest.raises(ValueError, match=message):
            t.insert(wrong)
    for n in range(63):
        t.insert(Entry((Exact(2), Exact(n)), "I.answer", (n,)))
    with pytest.raises(TableFull):
        t.insert(Entry((Exact(3), Exact(0)), "I.answer", (1,)))
    assert len(t.entries()) == 64
