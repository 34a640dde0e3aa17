"""Where everything lives: a program's fields in the packet header vector, its state in the switch's memory.

Packet header vector (`phv`): uint64 words. A field of up to 64 bits takes one word and is always stored below
2**width; a wider one takes ceil(width / 64) words, the most significant first, so that the words stand in the
order of the packet's bytes. Memory (`mem`): one uint64 array for registers, counters, tables and groups.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from switchreduce.sim.target.ir import (
    CounterArray,
    Field,
    Header,
    Program,
    Register,
    Stack,
    Table,
    unsupported,
)

# control words at the start of the phv
EXIT, ERROR, CHECKSUM_ERROR, LENGTH, CLONE, CLONE_LIST, RESUBMIT, RECIRCULATE, TRUNCATE, INGRESS_LENGTH = (
    range(10)
)
CONTROL_WORDS = 10

GROUPS = 1 << 16  # multicast group ids are 16 bits
SESSIONS = 1 << 15  # BMv2: RegisterAccess::MAX_MIRROR_SESSION_ID
REPLICAS = 1 << 16  # replicas of all groups and sessions together

WIDE_HEADER_WORDS = 16  # headers larger than this are cleared only where the parser left them invalid
MAX_KEY_BITS = 1024


def words(width: int) -> int:
    return -(-width // 64)


@dataclass(frozen=True)
class TableLayout:
    """Offsets into `mem`, and inside a row. A row is key, mask, low ends, high ends, action, parameters."""

    base: int  # +0 number of entries, +1 default action, +2 default action's parameters
    rows: int
    row_words: int
    key_words: int
    masked: bool
    ranges: int
    action: int
    param_words: int
    order: int  # row numbers in order of precedence; for an exact table the slots of its hash table
    slots: int
    counters: int  # two words a row, or 0

    @property
    def mask(self) -> int:
        return self.key_words

    @property
    def low(self) -> int:
        return self.key_words * (2 if self.masked else 1)

    @property
    def high(self) -> int:
        return self.low + self.ranges


@dataclass
class Layout:
    """Every address that generated code and the control plane share."""

    fields: dict[Field, int] = field(default_factory=dict)
    valid: dict[Header, int] = field(default_factory=dict)
    stack_next: dict[Stack, int] = field(default_factory=dict)
    stack_stride: dict[Stack, int] = field(default_factory=dict)
    varbit_bits: dict[Field, int] = field(default_factory=dict)
    clear: list[tuple[int, int]] = field(default_factory=list)  # (first word, words) zero at a packet's start
    clear_if_invalid: list[tuple[Header, int, int]] = field(default_factory=list)
    metadata: list[tuple[int, int]] = field(default_factory=list)
    phv_words: int = 0  # without scratch space, which lies behind
    registers: dict[Register, tuple[int, int]] = field(
        default_factory=dict
    )  # (first word, words from cell to cell)
    counters: dict[CounterArray, int] = field(default_factory=dict)
    tables: dict[Table, TableLayout] = field(default_factory=dict)
    groups: int = 0
    sessions: int = 0
    replicas: int = 0
    random: int = 0
    drop_port: int = 0
    mem_words: int = 0

    def address(self, f: Field) -> int:
        return self.fields[f]


def lay_out(program: Program, parser_writes: set[Header], local: set[Field]) -> Layout:
    """`parser_writes`: headers that the parser changes other than by extracting them whole; `local`:
    metadata that no packet reads before it has written it, which need not be cleared."""
    layout = Layout()
    _lay_out_phv(program, layout, parser_writes, local)
    _lay_out_memory(program, layout)
    return layout


def _lay_out_phv(program: Program, layout: Layout, parser_writes: set[Header], local: set[Field]) -> None:
    at = CONTROL_WORDS
    for stack in program.stacks:
        layout.stack_next[stack] = at
        at += 1
    metadata = [h for h in program.headers if h.metadata]
    start = at
    for f in (f for h in metadata for f in h.fields if f.width <= 64 and f not in local):
        layout.fields[f] = at
        at += 1
    layout.metadata.append((start, at - start))
    layout.clear.append((0, at))
    headers = [h for h in program.headers if not h.metadata]
    stacks = list(program.stacks)
    # a stack's elements stand side by side, large headers last
    for header in sorted(
        headers,
        key=lambda h: (
            _block_words(h) > WIDE_HEADER_WORDS,
            stacks.index(h.stack) if h.stack else -1,
            h.position,
        ),
    ):
        size = _block_words(header)
        if size > WIDE_HEADER_WORDS and not header.stack:
            at += -(at + 1) % 8  # fields on a cache line's start
        layout.valid[header] = at
        at += 1
        for f in header.fields:
            layout.fields[f] = at
            at += words(f.width)
            if f.varbit:
                layout.varbit_bits[f] = at
                at += 1
        if size > WIDE_HEADER_WORDS and header not in parser_writes and not header.varbit:
            layout.clear.append((layout.valid[header], 1))
            layout.clear_if_invalid.append((header, layout.valid[header] + 1, size - 1))
        else:
            layout.clear.append((layout.valid[header], size))
    for stack in program.stacks:
        blocks = [layout.valid[h] for h in stack.headers]
        layout.stack_stride[stack] = blocks[1] - blocks[0] if len(blocks) > 1 else 0
        assert all(b == blocks[0] + i * layout.stack_stride[stack] for i, b in enumerate(blocks))
    at += -at % 8
    start = at
    rest = [f for h in metadata for f in h.fields if f.width > 64 or f in local]
    for f in sorted(rest, key=lambda f: f in local):
        layout.fields[f] = at
        at += words(f.width)
    layout.metadata.append((start, at - start))
    layout.clear.append((start, sum(words(f.width) for f in rest if f not in local)))
    layout.phv_words = at
    layout.clear = _merged(layout.clear)


def _block_words(header: Header) -> int:
    return 1 + sum(words(f.width) + f.varbit for f in header.fields)


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for start, n in sorted(ranges):
        if out and out[-1][0] + out[-1][1] == start:
            out[-1] = (out[-1][0], out[-1][1] + n)
        else:
            out.append((start, n))
    return [(start, n) for start, n in out if n]


def _lay_out_memory(program: Program, layout: Layout) -> None:
    at = 0

    def take(n: int) -> int:
        nonlocal at
        at += n
        return at - n

    layout.random, layout.drop_port = take(1), take(1)
    layout.groups, layout.sessions, layout.replicas = take(GROUPS), take(SESSIONS), take(REPLICAS)
    # Arrays of one shape stand interleaved: a packet touches the same cell of each, which then share cache
    # lines, and a run of accesses becomes a loop of stride one. Cell `size` stands for every cell out of
    # range and always reads as zero.
    families: dict[tuple[int, int], list[Register]] = {}
    for r in program.registers:
        families.setdefault((r.size, words(r.width)), []).append(r)
    for (size, n), members in families.items():
        stride = n * len(members)
        take(-at % 8)
        start = take((size + 1) * stride)
        for i, r in enumerate(members):
            layout.registers[r] = (start + i * n, stride)
    for c in program.counters:
        layout.counters[c] = take(2 * (c.size + 1))  # the last one takes counts out of range
    for table in program.tables:
        layout.tables[table] = _table(table, take)
    layout.mem_words = at


def _table(table: Table, take) -> TableLayout:  # type: ignore[no-untyped-def]
    params = max([sum(words(w) for _, w in a.params) for a in table.numbered_actions] + [0])
    base = take(2 + params)
    if not table.key:
        return TableLayout(base, 0, 0, 0, False, 0, 0, params, 0, 0, 0)
    ranges = [k for k in table.key if k.kind == "range"]
    bits = sum(k.width for k in table.key if k.kind != "range")
    if bits > MAX_KEY_BITS or any(k.width > 64 for k in ranges):
        raise unsupported(f"the key of table '{table.name}' ({bits} bits; a range of at most 64 bits)")
    masked = any(k.kind not in ("exact", "range") for k in table.key)
    ordered = masked or bool(ranges)
    n = words(bits)
    action = n * (2 if masked else 1) + 2 * len(ranges)
    row_words = action + 1 + params
    rows = take(table.max_size * row_words)
    slots = table.max_size if ordered else 1 << max(2, (2 * table.max_size - 1).bit_length())
    order = take(slots)
    counters = take(2 * table.max_size) if table.direct_counter else 0
    return TableLayout(base, rows, row_words, n, masked, len(ranges), action, params, order, slots, counters)
