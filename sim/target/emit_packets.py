"""Parser and deparser: bits of packets to fields and back."""

from __future__ import annotations

from switchreduce.sim.target import ir
from switchreduce.sim.target.blocks import Item, Step, Text, Wide, fold, fuse, render
from switchreduce.sim.target.emit_statements import Emitter
from switchreduce.sim.target.emit_wide import literal
from switchreduce.sim.target.ir import Const, Field, Header, Op, unsupported
from switchreduce.sim.target.layout import ERROR, words

# the core library's errors in p4c's numbering, for programs that do not list them
_CORE_ERRORS = ["NoError", "PacketTooShort", "NoMatch", "StackOutOfBounds", "HeaderTooShort", "ParserTimeout",
                "ParserInvalidArgument"]  # fmt: skip
_MOST_STATES = 4096  # visited for one packet; BMv2 would go on for ever
_PIECES = {1: (8,), 2: (16,), 3: (16, 8), 4: (32,), 5: (32, 8), 6: (32, 16), 7: (32, 16, 8), 8: (64,)}


# ---------------------------------------------------------------------------------------------- parser


class ParserEmitter:
    def __init__(self, emitter: Emitter):
        self.emitter = emitter
        self.layout = emitter.layout
        self.program = emitter.program

    def function(self) -> list[str]:
        """def parse: from byte `start` of a packet that ends at `end`; returns where the payload starts."""
        lines = ["def parse(phv, mem, buf, inp, start, end):", "    pos = start"]
        order, acyclic = _state_order(self.program)
        number = {name: k for k, name in enumerate(order)}
        if order:
            lines.append("    state = 0")
            indent = "    "
            if not acyclic:
                lines += ["    turns = 0", "    while state >= 0:", "        turns += 1"]
                lines += [f"        if turns > {_MOST_STATES}:"]
                lines += ["        " + x for x in self._fail("ParserTimeout")]
                indent = "        "
            for k, name in enumerate(order):
                lines.append(f"{indent}if state == {k}:")
                body = self._state(self.program.states[name], number)
                lines += [f"{indent}    {line}" for line in body]
                if not acyclic:
                    lines.append(f"{indent}    continue")
        lines += [f"    {line}" for line in self._clear_unparsed()]
        return [*lines, "    return pos"]

    def _clear_unparsed(self) -> list[str]:
        out = []
        for header, at, n in self.layout.clear_if_invalid:
            out += [f"if get(phv, {self.layout.valid[header]}) == U(0):"]
            out += [f"    for i in range({n}): put(phv, {at} + i, U(0))"]
        return out

    def error(self, name: str) -> int:
        return self.program.errors.get(name, _CORE_ERRORS.index(name))

    def _fail(self, name: str) -> list[str]:
        # headers that the parser did not reach are cleared on the way out
        return [f"    put(phv, {ERROR}, U({self.error(name)}))", *self._leave("    ")]

    def _leave(self, indent: str) -> list[str]:
        return [*(indent + line for line in self._clear_unparsed()), f"{indent}return pos"]

    def _state(self, state: ir.ParserState, number: dict[str, int]) -> list[str]:
        lines: list[str] = []
        items: list[Item] = []

        def flush() -> None:
            nonlocal lines, items
            lines += render(fuse(fold(items, 0)))
            items = []

        pending: list[ir.Statement] = []

        def flush_all() -> None:
            nonlocal lines, pending
            flush()
            if pending:
                lines += self.emitter.block(pending)
                pending = []

        for op in [*state.ops, None]:
            if isinstance(op, ir.Execute):
                value = op.statement.value if isinstance(op.statement, ir.Assign) else None
                if isinstance(value, ir.Lookahead):  # BMv2 counts the bits, wherever they start
                    flush_all()
                    size = -(-value.width // 8)
                    lines += [f"if end - pos < {size}:", *self._fail("PacketTooShort")]
                pending.append(op.statement)
                continue
            if pending:
                flush_all()
            if op is not None:
                items += self._op(op)
        flush()
        return lines + self._transition(state, number)

    def _op(self, op: ir.ParserOp) -> list[Item]:
        values = self.emitter.values()
        if isinstance(op, ir.Extract):
            return self._extract(op.header, op.varbit_bits)
        if isinstance(op, ir.ExtractNext):
            return self._extract_next(op.stack)
        if isinstance(op, ir.Verify):
            condition = values.boolean(op.condition)
            code = values.low(op.error, 32)
            self.emitter.done(values)
            return [
                Text(
                    (
                        *values.lines,
                        f"if not {condition}:",
                        f"    put(phv, {ERROR}, {code})",
                        *self._leave("    "),
                    )
                )
            ]
        assert isinstance(op, ir.Advance)
        bits = values.exact(op.bits)[0]
        self.emitter.done(values)
        return [
            Text(
                (
                    *values.lines,
                    f"step = {bits}",
                    "if step & U(7) != U(0):",
                    *self._fail("ParserInvalidArgument"),
                    "if step >> U(3) > U(end - pos):",
                    *self._fail("PacketTooShort"),
                    "pos += int64(step >> U(3))",
                )
            )
        ]

    def _extract(self, header: Header, varbit_bits: ir.Expr | None) -> list[Item]:
        size = header.bits // 8
        if varbit_bits is not None:
            return self._extract_varbit(header, varbit_bits)
        items: list[Item] = [Text((f"if end - pos < {size}:", *self._fail("PacketTooShort")))]
        items += self._fields(header.fields, "")
        return [*items, Text((f"put(phv, @{self.layout.valid[header]}@, U(1))", f"pos += {size}"))]

    def _extract_varbit(self, header: Header, bits: ir.Expr) -> list[Item]:
        """In BMv2's order: length not in bytes, packet too short, header longer than its type allows."""
        values = self.emitter.values()
        length = values.exact(ir.Op("&", (bits, Const(0xFFFFFFFF))))[0]
        self.emitter.done(values)
        varbit = header.varbit
        assert varbit is not None
        size, at, start = header.bits // 8, self.layout.address(varbit), varbit.bit_offset // 8
        n = words(varbit.width)
        items: list[Item] = [
            Text(
                (
                    *values.lines,
                    f"vl = {length}",
                    "if vl & U(7) != U(0):",
                    *self._fail("ParserInvalidArgument"),
                    f"if int64(vl >> U(3)) + {size} > end - pos:",
                    *self._fail("PacketTooShort"),
                    f"if vl > U({varbit.width}):",
                    *self._fail("HeaderTooShort"),
                )
            )
        ]
        items += self._fields(header.fields[: varbit.index], "")
        items.append(
            Text(
                (
                    f"put(phv, {self.layout.varbit_bits[varbit]}, vl)",
                    f"for i in range({n}):",
                    f"    put(phv, {at} + i, "
                    f"in_bits(inp, pos + {start} + int64(vl >> U(3)), 8 * (pos + {start} + 8 * i), 64))",
                    "pos += int64(vl >> U(3))",
                )
            )
        )
        items += self._fields(header.fields[varbit.index + 1 :], "")
        return [*items, Text((f"put(phv, {self.layout.valid[header]}, U(1))", f"pos += {size}"))]

    def _extract_next(self, stack: ir.Stack) -> list[Item]:
        header = stack.headers[0]
        size, count = header.bits // 8, len(stack.headers)
        next_at, stride = self.layout.stack_next[stack], self.layout.stack_stride[stack]
        check = Text(
            (
                f"if get(phv, {next_at}) >= U({count}):",
                *self._fail("StackOutOfBounds"),
                f"if end - pos < {size}:",
                *self._fail("PacketTooShort"),
                f"s0 = int64(get(phv, {next_at})) * {stride}",
            )
        )
        done = Text(
            (
                f"put(phv, @{self.layout.valid[header]}@ + s0, U(1))",
                f"put(phv, {next_at}, get(phv, {next_at}) + U(1))",
                f"pos += {size}",
            )
        )
        return [check, *self._fields(header.fields, " + s0"), done]

    def _fields(self, fields: list[Field], where: str) -> list[Item]:
        return [i for f in fields for i in self._field(f, where)]

    def _field(self, f: Field, where: str) -> list[Item]:
        at, offset = self.layout.address(f), f.bit_offset
        if f.width <= 64:
            return [Text((f"put(phv, @{at}@{where}, {_bits_of_packet(offset, f.width)})",))]
        n, first = words(f.width), f.width % 64
        items: list[Item] = []
        if offset % 8 or f.width % 8:
            take = first or 64
            for k in range(n):
                items.append(Text((f"put(phv, @{at + k}@{where}, {_bits_of_packet(offset, take)})",)))
                offset, take = offset + take, 64
            return items
        if first:
            items.append(Text((f"put(phv, @{at}@{where}, {_bits_of_packet(offset, first)})",)))
            at, offset, n = at + 1, offset + first, n - 1
        store = f"put(phv, @{at}@ + i{where}, {{}})"
        load = f"in64(inp, pos + @{offset // 8}@ + 8 * i)"
        return [*items, Wide(n, (Step((), (), (), store, load),))]

    def _transition(self, state: ir.ParserState, number: dict[str, int]) -> list[str]:
        def go(name: str | None) -> str:
            return f"state = {-1 if name is None else number[name]}"

        if not state.keys:
            return [go(state.default)]
        lines: list[str] = []
        for k, t in enumerate(state.transitions):
            values = self.emitter.values()
            condition = values.boolean(_matches(state.keys, t))
            self.emitter.done(values)
            if values.lines and k:  # statements between if and elif: nest instead
                rest = ir.ParserState(state.name, [], state.keys, state.transitions[k:], state.default)
                return [*lines, "else:", *("    " + x for x in self._transition(rest, number))]
            lines += [*values.lines, f"{'elif' if k else 'if'} {condition}:", f"    {go(t.next_state)}"]
        if not lines:
            return [go(state.default)]
        return [*lines, "else:", f"    {go(state.default)}"]


def _matches(keys: list[tuple[ir.Expr, int]], t: ir.Transition) -> ir.Expr:
    """The condition of a transition. Its value and mask hold the keys byte-padded, the last one lowest."""
    parts: list[ir.Expr] = []
    shift = 0
    for key, width in reversed(keys):
        full = (1 << width) - 1
        mask = full if t.mask is None else (t.mask >> shift) & full
        value = (t.value >> shift) & full & mask
        shift += 8 * -(-width // 8)
        if mask:
            masked = key if mask == full and not isinstance(key, ir.Load) else Op("&", (key, Const(mask)))
            parts.insert(0, Op("==", (masked, Const(value))))
    if not parts:
        return ir.Bool(True)
    out = parts[0]
    for p in parts[1:]:
        out = Op("and", (out, p))
    return out


def _bits_of_packet(offset: int, width: int) -> str:
    """Text for `width` <= 64 bits that start `offset` bits after byte `pos` and are known to be there."""
    first, last = offset // 8, (offset + width - 1) // 8
    n = last - first + 1
    if n > 8:
        return f"in_bits(inp, end, 8 * pos + {offset}, {width})"
    parts, at, left = [], first, 8 * n
    for size in _PIECES[n]:
        left -= size
        piece = f"in{size}(inp, pos + @{at}@)"
        parts.append(f"({piece} << U({left}))" if left else piece)
        at += size // 8
    text = " | ".join(parts) if len(parts) == 1 else f"({' | '.join(parts)})"
    unused = 8 * (last + 1) - (offset + width)
    if unused:
        text = f"({text} >> U({unused}))"
    return text if offset % 8 == 0 else f"{text} & {literal((1 << width) - 1)}"


def _state_order(program: ir.Program) -> tuple[list[str], bool]:
    """States that can be reached, the first one first, each before those it leads to where nothing loops."""
    order: list[str] = []
    open_states: set[str] = set()
    acyclic = True
    start = program.start_state
    stack = [(start, False)] if start else []
    while stack:
        name, finished = stack.pop()
        assert name is not None
        if finished:
            open_states.discard(name)
            order.append(name)
            continue
        if name in order or name in open_states:
            continue
        if name not in program.states:
            raise unsupported(f"the parser state '{name}', which is not declared")
        open_states.add(name)
        stack.append((name, True))
        state = program.states[name]
        for successor in [t.next_state for t in state.transitions] + [state.default]:
            if successor is None or successor in order:
                continue
            if successor in open_states:
                acyclic = False
            else:
                stack.append((successor, False))
    order.reverse()
    position = {name: k for k, name in enumerate(order)}
    for name in order:
        state = program.states[name]
        for successor in [t.next_state for t in state.transitions] + [state.default]:
            if successor is not None and position[successor] <= position[name]:
                acyclic = False
    return order, acyclic


# ---------------------------------------------------------------------------------------------- deparser


def deparse_function(emitter: Emitter) -> list[str]:
    """def deparse: writes the valid headers at byte `at` of `out`; returns the byte behind them."""
    items = [i for h in emitter.program.deparse_order for i in _deparse(emitter, h)]
    return ["def deparse(phv, out, at):", *("    " + x for x in render(fold(items))), "    return at"]


def _deparse(emitter: Emitter, header: Header) -> list[Item]:
    layout = emitter.layout
    inner: list[Item] = []
    run: list[Field] = []
    for f in header.fields:
        if f.varbit:
            at, n = layout.address(f), layout.varbit_bits[f]
            inner.append(
                Text(
                    (
                        f"for i in range(0, int64(get(phv, {n})), 8):",
                        f"    byte = get(phv, {at} + (i >> 6)) >> U(56 - (i & 63))",
                        f"    out8(out, at + {f.bit_offset // 8} + (i >> 3), byte)",
                        f"at += int64(get(phv, {n}) >> U(3))",
                    )
                )
            )
            continue
        run.append(f)
        if (f.bit_offset + f.width) % 8 == 0:
            inner += _write_run(emitter, run)
            run = []
    if run:
        raise unsupported(f"the header '{header.name}', whose variable-length field starts inside a byte")
    body = render(fuse(fold(inner, 1)))
    body.append(f"at += {header.bits // 8}")
    if header.metadata:
        return [Text(tuple(body))]
    return [Text((f"if get(phv, @{layout.valid[header]}@) != U(0):", *("    " + x for x in body)))]


def _write_run(emitter: Emitter, run: list[Field]) -> list[Item]:
    """Fields that together fill whole bytes."""
    layout = emitter.layout
    start, width = run[0].bit_offset, sum(f.width for f in run)
    if width <= 64:
        value, left = [], width
        for f in run:
            left -= f.width
            text = f"get(phv, @{layout.address(f)}@)"
            value.append(f"({text} << U({left}))" if left else text)
        return [Text(tuple(_bytes_to_packet(start // 8, width // 8, " | ".join(value))))]
    if len(run) > 1 or start % 8 or run[0].width % 8:
        return [Text(tuple(line for f in run for line in _unaligned(layout.address(f), f)))]
    f = run[0]
    at, n, first = layout.address(f), words(f.width), f.width % 64
    items: list[Item] = []
    if first:
        items.append(Text(tuple(_bytes_to_packet(start // 8, first // 8, f"get(phv, @{at}@)"))))
        at, n, start = at + 1, n - 1, start + first
    store = f"out64(out, at + @{start // 8}@ + 8 * i, {{}})"
    return [*items, Wide(n, (Step((), (), (), store, f"get(phv, @{at}@ + i)"),))]


def _bytes_to_packet(offset: int, n: int, value: str) -> list[str]:
    pieces = _PIECES[n]
    if len(pieces) == 1:
        return [f"out{pieces[0]}(out, at + @{offset}@, {value})"]
    lines, left = [f"t0 = {value}"], 8 * n
    for size in pieces:
        left -= size
        text = f"t0 >> U({left})" if left else "t0"
        lines.append(f"out{size}(out, at + @{offset}@, {text})")
        offset += size // 8
    return lines


def _unaligned(at: int, f: Field) -> list[str]:
    lines, offset, width = [], f.bit_offset, f.width
    for k in range(words(f.width)):
        take = width % 64 or 64
        lines.append(f"out_bits(out, 8 * at + {offset}, {take}, get(phv, @{at + k}@))")
        offset, width = offset + take, width - take
    return lines
