"""Statements of actions and parser states to code."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from switchreduce.sim.target import ir
from switchreduce.sim.target.blocks import (
    Item,
    Step,
    Text,
    Wide,
    addresses,
    drop_dead_stores,
    fold,
    fuse,
    render,
)
from switchreduce.sim.target.bounds import Known
from switchreduce.sim.target.emit_values import Values
from switchreduce.sim.target.emit_wide import Loop, literal
from switchreduce.sim.target.ir import Const, Field, Header, Op, Stack, Statement
from switchreduce.sim.target.layout import (
    CLONE,
    CLONE_LIST,
    EXIT,
    INGRESS_LENGTH,
    LENGTH,
    RECIRCULATE,
    RESUBMIT,
    TRUNCATE,
    Layout,
    words,
)

_SESSION_MASK = 0x7FFF  # BMv2: RegisterAccess::MIRROR_SESSION_ID_MASK
_SESSION_VALID = 0x8000


class Emitter:
    """What all blocks of one program share."""

    def __init__(self, program: ir.Program, layout: Layout, local: set[Field]):
        self.program = program
        self.layout = layout
        self.constants: dict[tuple[int, ...], str] = {}
        self.scratch_words = 0
        self.writes: set[int] = set()  # phv words that were written since this was last emptied
        self.calculations: dict[str, ir.Calculation] = {}  # those that need a function of their own
        self.local = local
        self.wide_words = {
            a + k for f, a in layout.fields.items() if f.width > 64 for k in range(words(f.width))
        }

    @property
    def phv_words(self) -> int:
        """Words from one packet's vector to the next: whole cache lines."""
        return -(-(self.layout.phv_words + self.scratch_words) // 8) * 8

    def block(
        self,
        statements: Iterable[Statement],
        params: list[Const] | None = None,
        widths: list[int] | None = None,
    ) -> list[str]:
        """Lines for an action's body."""
        block = _Block(self, params, widths or [])
        items = block.items(statements)
        dead = [(self.layout.address(f), words(f.width)) for f in self.local if f.width > 64]
        lines = render(drop_dead_stores(fuse(fold(items)), dead))
        self.scratch_words = max(self.scratch_words, block.values.scratch_words)
        return lines

    def values(self) -> Values:
        return Values(self.layout, self.constants)

    def done(self, values: Values) -> None:
        self.scratch_words = max(self.scratch_words, values.scratch_words)

    def standard(self, name: str) -> Field | None:
        return self.program.standard(name)

    def drop_lines(self) -> list[str]:
        """mark_to_drop: BMv2 sets egress_spec to the drop port and clears mcast_grp."""
        spec = self.standard("standard_metadata.egress_spec")
        assert spec is not None
        lines = [f"put(phv, @{self.layout.address(spec)}@, peek(mem, {self.layout.drop_port}))"]
        self.writes.add(self.layout.address(spec))
        group = self.standard("intrinsic_metadata.mcast_grp")
        if group is not None:
            lines.append(f"put(phv, @{self.layout.address(group)}@, U(0))")
            self.writes.add(self.layout.address(group))
        return lines


class _Block:
    """One run of statements; facts about fields hold from statement to statement."""

    def __init__(self, emitter: Emitter, params: list[Const] | None, widths: list[int]):
        self.emitter = emitter
        self.layout = emitter.layout
        self.values = Values(emitter.layout, emitter.constants, params)
        offset = 0
        for w in widths:
            self.values.param_offsets.append(offset)
            offset += words(w)

    def items(self, statements: Iterable[Statement]) -> list[Item]:
        out: list[Item] = []
        for s in statements:
            self.values.begin()
            out += _STATEMENTS[type(s)](self, s)
        return out

    def text(self, *lines: str) -> list[Item]:
        """The lines after what their expressions need before them."""
        return [Text((*self.values.lines, *lines))]

    # ---------------------------------------------------------------------------------- writing a field

    def written(self, at: int, n: int = 1) -> None:
        self.emitter.writes.update(range(at, at + n))

    def forget(self, fields: Iterable[Field]) -> None:
        for f in fields:
            self.values.facts.pop(f, None)

    def store(self, place: ir.Place, value: ir.Expr) -> list[Item]:
        """place = value, cut to the field's width."""
        v = self.values
        if isinstance(place, ir.Load):
            f = place.field
            if f.width > 64:
                return self._store_wide(f, value)
            at = self.layout.address(f)
            items = self.text(f"put(phv, @{at}@, {v.low(value, f.width)})")
            self.written(at)
            self._learn(f, value)
            return items
        f = place.stack.headers[0].fields[place.index]
        at, n = self.layout.address(f), words(f.width)
        if f.width > 64:
            source = v.wide(_cut(value, f, v), n)
        else:
            low = v.temporary(v.low(value, f.width), "t")
        where = (
            v.last_element(place.stack)
            if isinstance(place, ir.LoadLast)
            else v.element(place.stack, place.position)
        )
        if f.width > 64:
            line = f"for i in range({n}): put(phv, @{at}@ + {where} + i, get(phv, @{source}@ + i))"
        else:
            line = f"put(phv, @{at}@ + {where}, {low})"
        self._stack_written(place.stack)
        return self.text(f"if {where} >= 0:", "    " + line)

    def _stack_written(self, stack: Stack) -> None:
        first = self.layout.valid[stack.headers[0]]
        self.written(first, max(1, self.layout.stack_stride[stack]) * len(stack.headers))
        last = stack.headers[-1]
        for f in last.fields:
            self.written(self.layout.address(f), words(f.width))
        self.forget(f for h in stack.headers for f in h.fields)

    def _learn(self, f: Field, value: ir.Expr) -> None:
        k = self.values.known(value)
        fits = k.low >= 0 and k.high < 1 << f.width and k.may >= 0 and not f.signed
        if fits:
            self.values.facts[f] = k
        else:
            self.values.facts.pop(f, None)

    def _store_wide(self, f: Field, value: ir.Expr) -> list[Item]:
        v = self.values
        at, n = self.layout.address(f), words(f.width)
        value = _cut(value, f, v)
        if n <= 4 and v.composable(value):
            parts = [v.temporary(v.bits(value, 64 * (n - 1 - k), 64).text) for k in range(n)]
            items = self.text(*(f"put(phv, @{at + k}@, {p})" for k, p in enumerate(parts)))
        else:
            items = [self._wide(n, value, f"put(phv, @{at}@ + i, {{}})", f"get(phv, @{at}@ + i)")]
        self.written(at, n)
        self._learn(f, value)
        return items

    def _wide(self, n: int, value: ir.Expr, store: str, place: str = "", after: tuple[str, ...] = ()) -> Item:
        v = self.values
        loop = Loop(v, n)
        text = loop.word(value)
        return self._step(n, text, store, place, after, loop)

    def _step(
        self, n: int, text: str, store: str, place: str, after: tuple[str, ...], loop: Loop | None = None
    ) -> Item:
        setup = tuple(self.values.lines)
        touched = {a for line in setup for a in addresses(line)}
        scratch = any(a >= self.layout.phv_words for a in touched)
        # a call needs its operands in memory as they are at this point
        fusable = not scratch and not touched & self.emitter.wide_words
        before = tuple(loop.before) if loop else ()
        body = tuple(loop.body) if loop else ()
        return Wide(n, (Step(setup, before, body, store, text, place, after, fusable),))

    # ---------------------------------------------------------------------------------- statements

    def assign(self, s: ir.Assign) -> list[Item]:
        return self.store(s.place, s.value)

    def register_read(self, s: ir.RegisterRead) -> list[Item]:
        v = self.values
        start, stride = self.layout.registers[s.register]
        row = v.index(s.index, s.register.size)
        n = words(s.register.width)
        if n > 1 and isinstance(s.place, ir.Load) and words(s.place.field.width) == n:
            f = s.place.field
            if f.width >= s.register.width:
                at = self.layout.address(f)
                self.written(at, n)
                self.values.facts.pop(f, None)
                text = f"peek(mem, {row} * {stride} + @{start}@ + i)"
                return [self._step(n, text, f"put(phv, @{at}@ + i, {{}})", f"get(phv, @{at}@ + i)", ())]
        cells = tuple(f"peek(mem, {row} * {stride} + @{start + k}@)" for k in range(n))
        return self.store(s.place, ir.Computed(s.register.width, cells))

    def register_write(self, s: ir.RegisterWrite) -> list[Item]:
        v = self.values
        start, stride = self.layout.registers[s.register]
        size, width = s.register.size, s.register.width
        n = words(width)
        row = v.index(s.index, size)
        # cell `size` stands for those out of range, and must go on reading as zero
        if n == 1:
            return self.text(
                f"if {row} < {size}: poke(mem, {row} * {stride} + @{start}@, {v.low(s.value, width)})"
            )
        value = _cut_to(s.value, width, v)
        clear = f"if {row} == {size}: clear(mem, {row} * {stride} + @{start}@, {n})"
        return [self._wide(n, value, f"poke(mem, {row} * {stride} + @{start}@ + i, {{}})", "", (clear,))]

    def count(self, s: ir.Count) -> list[Item]:
        at = self.layout.counters[s.counter]
        row = self.values.index(s.index, s.counter.size)
        if isinstance(s.index, Const):
            return self.text(f"count(mem, @{at + 2 * int(row)}@, get(phv, {INGRESS_LENGTH}))")
        return self.text(
            f"if {row} < {s.counter.size}: count(mem, @{at}@ + 2 * {row}, get(phv, {INGRESS_LENGTH}))"
        )

    def hash_into(self, s: ir.HashInto) -> list[Item]:
        v = self.values
        self.emitter.calculations[s.calculation.name] = s.calculation
        result = v.temporary(f"{calculation_name(s.calculation)}(phv, buf)")
        limit = v.temporary(f"max({v.low(s.max, 64)}, U(1))")
        base = v.low(s.base, 64)
        return self.store(s.place, ir.Computed(64, (f"({result} % {limit} + {base})",)))

    def random(self, s: ir.Random) -> list[Item]:
        v = self.values
        low, high = v.temporary(v.low(s.low, 64)), v.temporary(v.low(s.high, 64))
        span = v.temporary(f"{high} - {low} + U(1)")
        word = f"random_word(mem, {self.layout.random})"
        draw = v.temporary(f"{low} + ({word} % {span} if {span} != U(0) else {word})")
        before = len(v.lines)
        items = self.store(s.place, ir.Computed(64, (draw,)))
        lines = items[0].lines if isinstance(items[0], Text) else ()
        return [Text((*lines[:before], f"if {low} <= {high}:", *("    " + x for x in lines[before:])))]

    def assign_header(self, s: ir.AssignHeader) -> list[Item]:
        to, source = self.layout.valid[s.target], self.layout.valid[s.source]
        if to == source:
            return []
        n = sum(words(f.width) + f.varbit for f in s.target.fields)
        self.written(to, n + 1)
        self.forget(s.target.fields)
        return self.text(
            f"put(phv, @{to}@, get(phv, @{source}@))",
            f"if get(phv, @{source}@) != U(0):",
            f"    for i in range({n}): put(phv, @{to + 1}@ + i, get(phv, @{source + 1}@ + i))",
        )

    def assign_header_at(self, s: ir.AssignHeaderAt) -> list[Item]:
        v = self.values
        to, to_check = self._block_address(s.target)
        source, source_check = self._block_address(s.source)
        header = s.target if isinstance(s.target, Header) else s.target[0].headers[0]
        n = sum(words(f.width) for f in header.fields)
        if isinstance(s.target, Header):
            self.written(self.layout.valid[s.target], n + 1)
            self.forget(s.target.fields)
        else:
            self._stack_written(s.target[0])
        valid = v.temporary(f"{source_check} and get(phv, {source}) != U(0)", "b")
        return self.text(
            f"if {to_check}:",
            f"    put(phv, {to}, U(1) if {valid} else U(0))",
            f"    if {valid}:",
            f"        for i in range({n}): put(phv, {to} + 1 + i, get(phv, {source} + 1 + i))",
        )

    def _block_address(self, side: Header | tuple[Stack, ir.Expr]) -> tuple[str, str]:
        if isinstance(side, Header):
            return f"@{self.layout.valid[side]}@", "True"
        where = self.values.element(*side)
        return f"@{self.layout.valid[side[0].headers[0]]}@ + {where}", f"{where} >= 0"

    def assign_stack(self, s: ir.AssignStack) -> list[Item]:
        items: list[Item] = []
        to, source = self.layout.stack_next[s.target], self.layout.stack_next[s.source]
        self.written(to)
        items += self.text(f"put(phv, @{to}@, get(phv, @{source}@))")
        for a, b in zip(s.target.headers, s.source.headers, strict=True):
            self.values.begin()
            items += self.assign_header(ir.AssignHeader(a, b))
        return items

    def set_valid(self, s: ir.SetValid) -> list[Item]:
        at = self.layout.valid[s.header]
        n = sum(words(f.width) + f.varbit for f in s.header.fields)
        self.written(at, n + 1 if s.valid else 1)
        self.forget(s.header.fields)
        size = self._bytes_on_wire(s.header)
        self.written(LENGTH)
        if s.valid:  # BMv2 clears a header that was invalid, and leaves a valid one alone
            return self.text(
                f"if get(phv, @{at}@) == U(0):",
                f"    for i in range({n}): put(phv, @{at + 1}@ + i, U(0))",
                f"    put(phv, @{at}@, U(1))",
                f"    put(phv, {LENGTH}, get(phv, {LENGTH}) + {size})",
            )
        return self.text(
            f"if get(phv, @{at}@) != U(0):",
            f"    put(phv, @{at}@, U(0))",
            f"    put(phv, {LENGTH}, get(phv, {LENGTH}) - {size})",
        )

    def _bytes_on_wire(self, header: Header) -> str:
        fixed = literal(header.bits // 8)
        if header.varbit is None:
            return fixed
        return f"({fixed} + (get(phv, @{self.layout.varbit_bits[header.varbit]}@) >> U(3)))"

    def set_valid_at(self, s: ir.SetValidAt) -> list[Item]:
        where = self.values.element(s.stack, s.position)
        header = s.stack.headers[0]
        at = self.layout.valid[header]
        n = sum(words(f.width) for f in header.fields)
        size = literal(header.bits // 8)
        self._stack_written(s.stack)
        self.written(LENGTH)
        if s.valid:
            return self.text(
                f"if {where} >= 0 and get(phv, @{at}@ + {where}) == U(0):",
                f"    for i in range({n}): put(phv, @{at + 1}@ + {where} + i, U(0))",
                f"    put(phv, @{at}@ + {where}, U(1))",
                f"    put(phv, {LENGTH}, get(phv, {LENGTH}) + {size})",
            )
        return self.text(
            f"if {where} >= 0 and get(phv, @{at}@ + {where}) != U(0):",
            f"    put(phv, @{at}@ + {where}, U(0))",
            f"    put(phv, {LENGTH}, get(phv, {LENGTH}) - {size})",
        )

    def shift(self, s: ir.Shift) -> list[Item]:
        """push_front and pop_front as P4_16 has them (BMv2's default build): new elements are invalid."""
        if s.count == 0:
            return []
        layout, size = self.layout, len(s.stack.headers)
        k = min(s.count, size)
        next_at, first, stride = (
            layout.stack_next[s.stack],
            layout.valid[s.stack.headers[0]],
            layout.stack_stride[s.stack],
        )
        self._stack_written(s.stack)
        self.written(next_at)
        moved = (size - k) * stride
        step = k * stride
        old = f"int64(get(phv, @{next_at}@))"
        if s.push:
            count = f"U(min({old} + {k}, {size}))"
            order = f"range({moved - 1}, -1, -1)"
            move = f"for i in {order}: put(phv, @{first + step}@ + i, get(phv, @{first}@ + i))"
            gone = range(k)
        else:
            count = f"U(max({old} - {k}, 0))"
            move = f"for i in range({moved}): put(phv, @{first}@ + i, get(phv, @{first + step}@ + i))"
            gone = range(size - k, size)
        lines = [f"put(phv, @{next_at}@, {count})"] + ([move] if moved else [])
        lines += [f"put(phv, @{first + g * stride}@, U(0))" for g in gone]
        return self.text(*lines)

    def mark_to_drop(self, s: ir.MarkToDrop) -> list[Item]:
        lines = self.emitter.drop_lines()
        for name in ("standard_metadata.egress_spec", "intrinsic_metadata.mcast_grp"):
            f = self.emitter.standard(name)
            if f is not None:
                self.values.facts.pop(f, None)
        return self.text(*lines)

    def clone(self, s: ir.Clone) -> list[Item]:
        v = self.values
        self.written(CLONE)
        self.written(CLONE_LIST)
        session = v.low(ir.Op("&", (s.session, Const(_SESSION_MASK))), 16)
        field_list = v.low(s.field_list, 16)
        return self.text(
            f"put(phv, {CLONE}, {session} | {literal(_SESSION_VALID)})",
            f"put(phv, {CLONE_LIST}, {field_list})",
        )

    def again(self, s: ir.Again) -> list[Item]:
        at = RESUBMIT if s.kind == "resubmit" else RECIRCULATE
        self.written(at)
        return self.text(f"put(phv, {at}, {self.values.low(s.field_list, 16)})")

    def truncate(self, s: ir.Truncate) -> list[Item]:
        """The smallest length that was given counts; the word holds it plus one, 0 for none."""
        self.written(TRUNCATE)
        length = self.values.temporary(f"{self.values.low(s.length, 32)} + U(1)")
        return self.text(
            f"if get(phv, {TRUNCATE}) == U(0) or {length} < get(phv, {TRUNCATE}):",
            f"    put(phv, {TRUNCATE}, {length})",
        )

    def exit(self, s: ir.Exit) -> list[Item]:
        self.written(EXIT)
        return self.text(f"put(phv, {EXIT}, U(1))")

    def if_(self, s: ir.If) -> list[Item]:
        v = self.values
        condition = v.boolean(s.condition)
        head = [*v.lines, f"if {condition}:"]
        facts = dict(v.facts)
        lines = head
        after: list[dict[Field, Known]] = []
        for branch, start in ((s.then, "    "), (s.otherwise, "    ")):
            v.facts = dict(facts)
            inner = render(fuse(fold(self.items(branch), 1)))
            after.append(v.facts)
            if branch is s.otherwise:
                if not inner:
                    break
                lines = [*lines, "else:"]
            lines = [*lines, *(start + x for x in inner or ["pass"])]
        v.facts = {f: k for f, k in after[0].items() if after[1].get(f) == k}
        return [Text(tuple(lines))]


def _cut_to(value: ir.Expr, width: int, v: Values) -> ir.Expr:
    """The value modulo 2**width, as an expression."""
    k = v.known(value)
    if k.low >= 0 and k.may >= 0 and k.may.bit_length() <= width:
        return value
    return Op("&", (value, Const((1 << width) - 1)))


def _cut(value: ir.Expr, f: Field, v: Values) -> ir.Expr:
    return _cut_to(value, f.width, v)


def calculation_name(c: ir.Calculation) -> str:
    return "hash_" + "".join(ch if ch.isalnum() else "_" for ch in c.name)


_STATEMENTS: dict[type, Callable[..., list[Item]]] = {
    ir.Assign: _Block.assign,
    ir.AssignHeader: _Block.assign_header,
    ir.AssignHeaderAt: _Block.assign_header_at,
    ir.AssignStack: _Block.assign_stack,
    ir.SetValid: _Block.set_valid,
    ir.SetValidAt: _Block.set_valid_at,
    ir.Shift: _Block.shift,
    ir.RegisterRead: _Block.register_read,
    ir.RegisterWrite: _Block.register_write,
    ir.Count: _Block.count,
    ir.HashInto: _Block.hash_into,
    ir.Random: _Block.random,
    ir.MarkToDrop: _Block.mark_to_drop,
    ir.Clone: _Block.clone,
    ir.Again: _Block.again,
    ir.Truncate: _Block.truncate,
    ir.Exit: _Block.exit,
    ir.If: _Block.if_,
}
