"""Match-action tables as the control plane sees them; entries live in the switch's memory.

P4Runtime's conventions: the larger priority wins, values are non-negative integers. Exact and LPM tables know
no priorities; in an LPM table the longest prefix wins.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from switchreduce.errors import SwitchReduceError
from switchreduce.sim.target import ir
from switchreduce.sim.target.emit_control import hash_words
from switchreduce.sim.target.layout import TableLayout, words

Memory = np.ndarray[Any, np.dtype[np.uint64]]
_WORD = (1 << 64) - 1


class EntryExists(SwitchReduceError, KeyError):
    """The table holds an entry with this key (and priority) already."""


class EntryNotFound(SwitchReduceError, KeyError):
    """The table holds no entry with this key (and priority)."""


class TableFull(SwitchReduceError):
    """The table holds as many entries as the program allows."""


class TableConst(SwitchReduceError, ValueError):
    """The program fixes this table's entries or its default action."""


@dataclass(frozen=True)
class Exact:
    value: int


@dataclass(frozen=True)
class Lpm:
    value: int
    prefix_len: int


@dataclass(frozen=True)
class Ternary:
    value: int
    mask: int


@dataclass(frozen=True)
class Range:
    low: int
    high: int


Match = Exact | Lpm | Ternary | Range
Key = tuple[Match, ...]
_KINDS: dict[str, type] = {"exact": Exact, "lpm": Lpm, "ternary": Ternary, "range": Range}


@dataclass(frozen=True)
class Entry:
    """One table entry; `key` has one match for each of the table's key fields."""

    key: Key
    action: str
    params: tuple[int, ...] = ()
    priority: int = 0


@dataclass(frozen=True)
class MatchField:
    name: str
    kind: str  # exact, lpm, ternary or range
    width: int  # bits


@dataclass(frozen=True)
class TableSpec:
    name: str
    max_size: int
    match: tuple[MatchField, ...]
    actions: dict[str, tuple[tuple[str, int], ...]]  # action -> (parameter, width in bits)
    default_is_const: bool
    has_direct_counter: bool
    has_priority: bool


@dataclass
class _Held:
    entry: Entry
    row: int
    order: tuple[int, int]


class TableState:
    """One table of a running switch. Every method is atomic between batches of packets.

    Raises ValueError for a key, action or parameter that does not fit the table.
    """

    def __init__(self, table: ir.Table, layout: TableLayout, mem: Memory, lock: threading.RLock):
        self._layout, self._mem, self._lock = layout, mem, lock
        self._actions = table.numbered_actions
        self._number = {a.name: k for k, a in enumerate(self._actions)}
        self._by_priority = any(k.kind in ("ternary", "range") for k in table.key) or table.kind in (
            "ternary",
            "range",
        )
        self.spec = TableSpec(
            name=table.name,
            max_size=table.max_size,
            match=tuple(MatchField(k.name, k.kind, k.width) for k in table.key),
            actions={a.name: tuple(a.params) for a in self._actions},
            default_is_const=table.default_is_const,
            has_direct_counter=bool(layout.counters),
            has_priority=self._by_priority,
        )
        self._ordered = layout.masked or layout.ranges > 0
        self._held: dict[tuple[Key, int], _Held] = {}
        self._order: list[tuple[tuple[int, int], int]] = []  # (precedence, row), sorted
        self._free = list(range(table.max_size - 1, -1, -1)) if table.key else []
        self._age = 0
        self._home: dict[int, int] = {}
        self._first_default = (table.default[0].name, table.default[1])
        self._write_default(*self._first_default)
        self.is_const = False
        lowest = max((e.priority for e in table.const_entries), default=0)
        for e in table.const_entries:
            key = tuple(_match(k.kind, *part, k.width) for k, part in zip(table.key, e.key, strict=True))
            # BMv2 counts priorities the other way round
            priority = lowest + 1 - e.priority if self._by_priority else 0
            self.insert(Entry(key, e.action.name, e.params, priority))
        self.is_const = bool(table.const_entries)

    # ---------------------------------------------------------------------------------- entries

    def insert(self, entry: Entry) -> None:
        """Adds an entry. Raises EntryExists, TableFull or TableConst."""
        with self._lock:
            self._check_mutable()
            key = self._normal(entry.key)
            self._check_params(entry.action, entry.params)
            place = self._place(key, entry.priority)
            if place in self._held:
                raise EntryExists(f"table {self.spec.name} holds this entry already; modify or delete it")
            if not self._free:
                raise TableFull(
                    f"table {self.spec.name} is full ({self.spec.max_size} entries); delete some first"
                )
            row = self._free.pop()
            self._age += 1
            held = _Held(
                Entry(key, entry.action, entry.params, place[1]), row, self._precedence(key, place[1])
            )
            self._write_row(row, key, entry)
            self._held[place] = held
            if self._layout.counters:
                at = self._layout.counters + 2 * row
                self._mem[at : at + 2] = 0
            if self._ordered:
                bisect.insort(self._order, (held.order, row))
                self._write_order()
            else:
                self._link(row)

    def modify(self, entry: Entry) -> None:
        """Changes an entry's action and parameters; not its counter. Raises EntryNotFound or TableConst."""
        with self._lock:
            self._check_mutable()
            key = self._normal(entry.key)
            self._check_params(entry.action, entry.params)
            held = self._find(key, entry.priority)
            held.entry = Entry(key, entry.action, entry.params, held.entry.priority)
            self._write_action(self._row_at(held.row) + self._layout.action, entry.action, entry.params)

    def delete(self, key: Key, priority: int = 0) -> None:
        """Raises EntryNotFound or TableConst."""
        with self._lock:
            self._check_mutable()
            key = self._normal(key)
            held = self._find(key, priority)
            if self._ordered:
                del self._order[bisect.bisect_left(self._order, (held.order, held.row))]
                self._write_order()
            else:
                self._unlink(held.row)
            del self._held[self._place(key, priority)]
            self._free.append(held.row)

    def clear(self) -> None:
        """Deletes all entries. Raises TableConst."""
        with self._lock:
            self._check_mutable()
            for held in list(self._held.values()):
                self.delete(held.entry.key, held.entry.priority)

    def get(self, key: Key, priority: int = 0) -> Entry | None:
        with self._lock:
            held = self._held.get(self._place(self._normal(key), priority))
            return held.entry if held else None

    def entries(self) -> list[Entry]:
        """All entries, those that the program fixes included, in the order in which they were added."""
        with self._lock:
            return [held.entry for held in self._held.values()]

    def __len__(self) -> int:
        return len(self._held)

    # ---------------------------------------------------------------------------------- default action

    @property
    def default(self) -> tuple[str, tuple[int, ...]]:
        with self._lock:
            return self._default

    def set_default(self, action: str, params: Sequence[int] = ()) -> None:
        """Raises TableConst."""
        with self._lock:
            if self.spec.default_is_const:
                raise TableConst(f"the program fixes the default action of table {self.spec.name}")
            self._check_params(action, tuple(params))
            self._write_default(action, tuple(params))

    def reset_default(self) -> None:
        """Back to the default action that the program gives."""
        with self._lock:
            self._write_default(*self._first_default)

    def _write_default(self, action: str, params: tuple[int, ...]) -> None:
        self._default = (action, tuple(params))
        self._write_action(self._layout.base + 1, action, params)

    # ---------------------------------------------------------------------------------- direct counters

    def direct_counter(self, key: Key, priority: int = 0) -> tuple[int, int]:
        """(packets, bytes) of an entry. Raises EntryNotFound, or ValueError for a table without counters."""
        with self._lock:
            at = self._counter_at(key, priority)
            return int(self._mem[at]), int(self._mem[at + 1])

    def set_direct_counter(self, key: Key, priority: int, packets: int, byte_count: int) -> None:
        with self._lock:
            at = self._counter_at(key, priority)
            self._mem[at : at + 2] = packets, byte_count

    def _counter_at(self, key: Key, priority: int) -> int:
        if not self._layout.counters:
            raise ValueError(f"table {self.spec.name} has no direct counter")
        return self._layout.counters + 2 * self._find(self._normal(key), priority).row

    # ---------------------------------------------------------------------------------- checks

    def _check_mutable(self) -> None:
        if self.is_const:
            raise TableConst(f"the program fixes the entries of table {self.spec.name}")

    def _place(self, key: Key, priority: int) -> tuple[Key, int]:
        return key, priority if self._by_priority else 0

    def _find(self, key: Key, priority: int) -> _Held:
        held = self._held.get(self._place(key, priority))
        if held is None:
            raise EntryNotFound(f"table {self.spec.name} holds no such entry; insert it first")
        return held

    def _normal(self, key: Key) -> Key:
        """The key with bits that do not matter cleared."""
        if len(key) != len(self.spec.match):
            raise ValueError(
                f"table {self.spec.name} matches on {len(self.spec.match)} fields; the key has {len(key)}"
            )
        return tuple(self._normal_match(m, f) for m, f in zip(key, self.spec.match, strict=True))

    def _normal_match(self, m: Match, f: MatchField) -> Match:
        where = f"field {f.name} of table {self.spec.name}"
        full = (1 << f.width) - 1
        if not isinstance(m, _KINDS[f.kind]):
            raise ValueError(f"{where} wants {_KINDS[f.kind].__name__}, not {type(m).__name__}")
        numbers = (m.low, m.high) if isinstance(m, Range) else (m.value,)
        if isinstance(m, Ternary):
            numbers = (m.value, m.mask)
        if not all(0 <= x <= full for x in numbers):
            raise ValueError(f"a value for {where} does not fit {f.width} bits")
        if isinstance(m, Lpm):
            if not 0 <= m.prefix_len <= f.width:
                raise ValueError(f"the prefix length {m.prefix_len} for {where} is not in 0..{f.width}")
            return Lpm(m.value & _prefix_mask(m.prefix_len, f.width), m.prefix_len)
        if isinstance(m, Ternary):
            return Ternary(m.value & m.mask, m.mask)
        if isinstance(m, Range) and m.low > m.high:
            raise ValueError(f"the range for {where} is empty ({m.low} > {m.high})")
        return m

    def _check_params(self, action: str, params: tuple[int, ...]) -> None:
        if action not in self._number:
            raise ValueError(
                f"table {self.spec.name} has no action {action}; it has {', '.join(self._number)}"
            )
        wanted = self.spec.actions[action]
        if len(params) != len(wanted):
            raise ValueError(f"action {action} takes {len(wanted)} parameters, not {len(params)}")
        for value, (name, width) in zip(params, wanted, strict=True):
            if not 0 <= value < 1 << width:
                raise ValueError(f"parameter {name} of action {action} does not fit {width} bits")

    # ---------------------------------------------------------------------------------- memory

    def _row_at(self, row: int) -> int:
        return self._layout.rows + row * self._layout.row_words

    def _precedence(self, key: Key, priority: int) -> tuple[int, int]:
        if self._by_priority:
            return -priority, self._age
        return -sum(m.prefix_len for m in key if isinstance(m, Lpm)), self._age

    def _key_words(self, key: Key) -> tuple[list[int], list[int]]:
        """(value, mask) of all matches but the ranges, as the generated lookup joins them."""
        value = mask = 0
        for m, f in zip(key, self.spec.match, strict=True):
            if isinstance(m, Range):
                continue
            value = value << f.width | m.value
            mask = mask << f.width | _mask_of(m, f.width)
        n = self._layout.key_words
        return _split(value, n), _split(mask, n)

    def _write_row(self, row: int, key: Key, entry: Entry) -> None:
        layout, at = self._layout, self._row_at(row)
        value, mask = self._key_words(key)
        self._mem[at : at + len(value)] = np.array(value, dtype=np.uint64)
        if layout.masked:
            self._mem[at + layout.mask : at + layout.mask + len(mask)] = np.array(mask, dtype=np.uint64)
        for k, m in enumerate(m for m in key if isinstance(m, Range)):
            self._mem[at + layout.low + k] = np.uint64(m.low)
            self._mem[at + layout.high + k] = np.uint64(m.high)
        self._write_action(at + layout.action, entry.action, entry.params)

    def _write_action(self, at: int, action: str, params: tuple[int, ...]) -> None:
        number = self._number[action]
        self._mem[at] = number
        at += 1
        for value, (_, width) in zip(params, self._actions[number].params, strict=True):
            n = words(width)
            self._mem[at : at + n] = np.array(_split(value, n), dtype=np.uint64)
            at += n

    def _write_order(self) -> None:
        at, n = self._layout.order, len(self._order)
        self._mem[at : at + n] = np.fromiter((row for _, row in self._order), dtype=np.uint64, count=n)
        self._mem[self._layout.base] = n

    # an exact table's slots: open addressing, linear probing

    def _link(self, row: int) -> None:
        order, mask = self._layout.order, self._layout.slots - 1
        at = self._row_at(row)
        key = [int(x) for x in self._mem[at : at + self._layout.key_words]]
        slot = self._home[row] = hash_words(key) & mask
        while self._mem[order + slot]:
            slot = (slot + 1) & mask
        self._mem[order + slot] = row + 1

    def _unlink(self, row: int) -> None:
        """Moves later entries of the run back, so that no search stops short (Knuth, TAOCP 6.4, R)."""
        order, mask = self._layout.order, self._layout.slots - 1
        hole = self._home.pop(row)
        while int(self._mem[order + hole]) != row + 1:
            hole = (hole + 1) & mask
        slot = hole
        while True:
            self._mem[order + hole] = 0
            while True:
                slot = (slot + 1) & mask
                other = int(self._mem[order + slot])
                if not other:
                    return
                home = self._home[other - 1]
                if (slot - home) & mask >= (slot - hole) & mask:
                    break
            self._mem[order + hole] = other
            hole = slot


def _match(kind: str, value: int, other: int, width: int) -> Match:
    if kind == "exact":
        return Exact(value)
    if kind == "lpm":
        return Lpm(value, other)
    if kind == "ternary":
        return Ternary(value & other, other)
    return Range(value, other)


def _prefix_mask(prefix_len: int, width: int) -> int:
    return ((1 << prefix_len) - 1) << (width - prefix_len)


def _mask_of(m: Match, width: int) -> int:
    if isinstance(m, Lpm):
        return _prefix_mask(m.prefix_len, width)
    return m.mask if isinstance(m, Ternary) else (1 << width) - 1


def _split(value: int, n: int) -> list[int]:
    return [(value >> (64 * (n - 1 - k))) & _WORD for k in range(n)]
