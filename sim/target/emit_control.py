"""Ingress and egress: conditionals, tables, actions; checksums and hashes."""

from __future__ import annotations

from switchreduce.sim.target import ir
from switchreduce.sim.target.emit_statements import Emitter, calculation_name
from switchreduce.sim.target.emit_wide import literal
from switchreduce.sim.target.hashing import ALGORITHMS
from switchreduce.sim.target.ir import (
    Action,
    Conditional,
    Const,
    Field,
    Header,
    Node,
    Op,
    Pipeline,
    Table,
    unsupported,
)
from switchreduce.sim.target.layout import CHECKSUM_ERROR, EXIT, INGRESS_LENGTH, words

_CHAINS_IN_A_FUNCTION = 8  # numba's time for a function grows faster than its length
_HASH_MULTIPLIER = 0x9E3779B97F4A7C15  # 2**64 / golden ratio (Knuth, TAOCP 6.4)


def indent(lines: list[str], by: str = "    ") -> list[str]:
    return [by + line for line in lines]


# ---------------------------------------------------------------------------------------------- tables


def key_value(table: Table) -> ir.Expr:
    """All key fields but the ranges, joined into one number, the first field highest."""
    value: ir.Expr = Const(0)
    for k in table.key:
        if k.kind != "range":
            value = Op("|", (Op("<<", (value, Const(k.width))), k.value))
    return value


def find_function(emitter: Emitter, table: Table, name: str) -> list[str]:
    """def find_...: the address of the entry that a packet hits, or -1."""
    layout = emitter.layout.tables[table]
    values = emitter.values()
    value = key_value(table)
    n = layout.key_words
    keys = [values.bits(value, 64 * (n - 1 - k), 64).text for k in range(n)]
    ranges = [values.low(k.value, 64) for k in table.key if k.kind == "range"]
    lines = [f"def {name}(phv, mem):", *indent(values.lines)]
    lines += [f"    key{k} = {text}" for k, text in enumerate(keys)]
    lines += [f"    end{k} = {text}" for k, text in enumerate(ranges)]
    emitter.done(values)
    if not layout.masked and not ranges:
        lines += _probe(layout.order, layout.slots, layout.rows, layout.row_words, n)
        return lines
    masks = [f" & peek(mem, row + {layout.mask + k})" if layout.masked else "" for k in range(n)]
    tests = [f"(key{k}{masks[k]}) == peek(mem, row + {k})" for k in range(n)]
    for k in range(len(ranges)):
        tests.append(f"peek(mem, row + {layout.low + k}) <= end{k} <= peek(mem, row + {layout.high + k})")
    return [
        *lines,
        f"    for i in range(int64(peek(mem, {layout.base}))):",
        f"        row = {layout.rows} + {layout.row_words} * int64(peek(mem, {layout.order} + i))",
        f"        if {' and '.join(tests)}:",
        "            return row",
        "    return -1",
    ]


def _probe(order: int, slots: int, rows: int, row_words: int, n: int) -> list[str]:
    """Open addressing with linear probing; a slot holds a row number plus one, `tables.py` fills them."""
    lines = ["    h = U(0)"]
    for k in range(n):
        lines += [f"    h = (h ^ key{k}) * {literal(_HASH_MULTIPLIER)}", "    h ^= h >> U(32)"]
    same = " and ".join(f"peek(mem, row + {k}) == key{k}" for k in range(n))
    return [
        *lines,
        f"    at = int64(h & {literal(slots - 1)})",
        "    while True:",
        f"        entry = int64(peek(mem, {order} + at))",
        "        if entry == 0:",
        "            return -1",
        f"        row = {rows - row_words} + {row_words} * entry",
        f"        if {same}:",
        "            return row",
        f"        at = (at + 1) & {slots - 1}",
    ]


def hash_words(key: list[int]) -> int:
    """The hash that the generated lookup computes."""
    h = 0
    for k in key:
        h = ((h ^ k) * _HASH_MULTIPLIER) & ((1 << 64) - 1)
        h ^= h >> 32
    return h


# ---------------------------------------------------------------------------------------------- pipelines


class ControlEmitter:
    def __init__(self, emitter: Emitter):
        self.emitter = emitter
        self.functions: list[list[str]] = []  # what the pipelines call
        self._actions: set[int] = set()

    def pipeline(self, pipeline: Pipeline) -> list[str]:
        """def ingress or egress: the nodes in an order in which every one comes before those it leads to."""
        lines = [f"def {pipeline.name}(phv, mem, buf):"]
        chains = _chains(pipeline)
        if not chains:
            return [*lines, "    pass"]
        number = {chain[0]: k for k, chain in enumerate(chains)}
        lines.append("    node = 0")
        for start in range(0, len(chains), _CHAINS_IN_A_FUNCTION):
            name = f"{pipeline.name}_{start // _CHAINS_IN_A_FUNCTION}"
            part = [f"def {name}(phv, mem, buf, node):"]
            for k in range(start, min(start + _CHAINS_IN_A_FUNCTION, len(chains))):
                part += indent([f"if node == {k}:", *indent(self._chain(pipeline, chains[k], number))])
            self.functions.append([*part, "    return node"])
            lines.append(f"    node = {name}(phv, mem, buf, node)")
        return lines

    def _chain(self, pipeline: Pipeline, chain: list[str], number: dict[str, int]) -> list[str]:
        body: list[str] = []
        for k, name in enumerate(chain):
            following = chain[k + 1] if k + 1 < len(chain) else None
            body += self._node(pipeline.nodes[name], number, following)
        return body

    def _node(self, node: Node, number: dict[str, int], following: str | None) -> list[str]:
        def go(name: str | None) -> list[str]:
            return [] if following is not None else [f"node = {-1 if name is None else number[name]}"]

        if isinstance(node, Conditional):
            values = self.emitter.values()
            condition = values.boolean(node.condition)
            self.emitter.done(values)
            if node.if_true == node.if_false:
                return go(node.if_true)
            return [
                *values.lines,
                f"if {condition}:",
                *indent(go(node.if_true)),
                "else:",
                *indent(go(node.if_false)),
            ]
        if not node.key and node.default_is_const:
            return self._inline(node, go)
        return self._apply(node, go)

    def _inline(self, table: Table, go) -> list[str]:  # type: ignore[no-untyped-def]
        """A table that always runs one action: p4c makes one of every run of statements."""
        action, params = table.default
        body = self.emitter.block(action.body, [Const(p) for p in params], [w for _, w in action.params])
        successor = table.next_miss if table.by_hit else table.next_by_action.get(action.ident)
        return [*body, *self._unless_exit(action, go(successor))]

    def _unless_exit(self, action: Action, go: list[str]) -> list[str]:
        if not _may_exit(action.body):
            return go
        # an exit ends the pipeline, whatever would have come next
        return [*go, f"if get(phv, {EXIT}) != U(0): return -1"]

    def _apply(self, table: Table, go) -> list[str]:  # type: ignore[no-untyped-def]
        layout = self.emitter.layout.tables[table]
        lines: list[str] = []
        default = [f"act = int64(peek(mem, {layout.base + 1}))", f"args = {layout.base + 2}"]
        if table.key:
            name = f"find_{len(self.functions)}"
            self.functions.append(find_function(self.emitter, table, name))
            counters = []
            if layout.counters:
                counters = [
                    f"count(mem, {layout.counters} + 2 * ((row - {layout.rows}) // {layout.row_words}), "
                    f"get(phv, {INGRESS_LENGTH}))"
                ]
            lines += [
                f"row = {name}(phv, mem)",
                "if row >= 0:",
                f"    act = int64(peek(mem, row + {layout.action}))",
                f"    args = row + {layout.action + 1}",
                *indent(counters),
                "else:",
                *indent(default),
            ]
        else:
            lines += ["row = -1", *default]
        successors = {table.next_by_action.get(a.ident) for a in table.numbered_actions}
        for k, action in enumerate(table.numbered_actions):
            lines.append(f"{'elif' if k else 'if'} act == {k}:")
            body = self._call(action)
            if not table.by_hit and len(successors) > 1:
                body += go(table.next_by_action.get(action.ident))
            lines += indent(body or ["pass"])
        if table.by_hit:
            if table.next_hit == table.next_miss:
                lines += go(table.next_hit)
            else:
                lines += ["if row >= 0:", *indent(go(table.next_hit)), "else:", *indent(go(table.next_miss))]
        elif len(successors) == 1:
            lines += go(successors.pop())
        if any(_may_exit(a.body) for a in table.numbered_actions):
            lines.append(f"if get(phv, {EXIT}) != U(0): return -1")
        return lines

    def _call(self, action: Action) -> list[str]:
        if not action.body:
            return []
        name = f"action_{action.ident}"
        if action.ident not in self._actions:
            self._actions.add(action.ident)
            body = self.emitter.block(action.body, None, [w for _, w in action.params])
            self.functions.append([f"def {name}(phv, mem, buf, args):", *indent(body or ["pass"])])
        return [f"{name}(phv, mem, buf, args)"]


def _may_exit(body: tuple[ir.Statement, ...]) -> bool:
    return any(
        isinstance(s, ir.Exit) or (isinstance(s, ir.If) and (_may_exit(s.then) or _may_exit(s.otherwise)))
        for s in body
    )


def _successors(node: Node) -> list[str | None]:
    if isinstance(node, Conditional):
        return [node.if_true, node.if_false]
    if node.by_hit:
        return [node.next_miss] if not node.key else [node.next_hit, node.next_miss]
    if not node.key and node.default_is_const:
        return [node.next_by_action.get(node.default[0].ident)]
    return [node.next_by_action.get(a.ident) for a in node.numbered_actions]


def _chains(pipeline: Pipeline) -> list[list[str]]:
    """Nodes that can be reached, in topological order, with runs that have no other way in or out joined."""
    order: list[str] = []
    state: dict[str, int] = {}
    stack = [(pipeline.start, False)] if pipeline.start else []
    while stack:
        name, finished = stack.pop()
        assert name is not None
        if finished:
            state[name] = 2
            order.append(name)
            continue
        if name in state:
            continue
        state[name] = 1
        stack.append((name, True))
        for s in _successors(pipeline.nodes[name]):
            if s is None:
                continue
            if state.get(s) == 1:
                raise unsupported(f"a loop in the pipeline '{pipeline.name}' at '{s}'")
            if s not in state:
                stack.append((s, False))
    order.reverse()
    ways_in: dict[str, set[str]] = {name: set() for name in order}
    for name in order:
        for s in _successors(pipeline.nodes[name]):
            if s is not None:
                ways_in[s].add(name)
    chains: list[list[str]] = []
    of: dict[str, list[str]] = {}
    for name in order:
        before = ways_in[name]
        only = next(iter(before)) if len(before) == 1 else None
        if only is not None and set(_successors(pipeline.nodes[only])) == {name}:
            of[only].append(name)
            of[name] = of[only]
        else:
            of[name] = [name]
            chains.append(of[name])
    return chains


# ---------------------------------------------------------------------------------------------- checksums


def calculation_function(emitter: Emitter, c: ir.Calculation) -> list[str]:
    """def hash_...: the result of a calculation over fields and perhaps the payload, before any reduction."""
    name, algorithm = calculation_name(c), ALGORITHMS[c.algorithm]
    payload = ", inp, pay, end" if c.payload else ""
    lines = [f"def {name}(phv, buf{payload}):"]
    by_name = {h.name: h for h in emitter.program.headers}
    owners = {
        by_name[x.header] if isinstance(x, Field) else x for x in c.inputs if isinstance(x, (Field, Header))
    }
    headers = [h for h in owners if not h.metadata]
    if algorithm == "csum16" and len(headers) <= 1 and not any(h.varbit for h in headers):
        # offsets are known when the code is generated: add up the words without writing them out
        fast = _sum_lines(emitter, c, by_name, set(headers))
        slow = _sum_lines(emitter, c, by_name, set())
        if headers:
            valid = emitter.layout.valid[headers[0]]
            return [*lines, f"    if get(phv, {valid}) != U(0):", *indent(fast, "        "), *indent(slow)]
        return [*lines, *indent(slow)]
    lines.append("    nb = 0")
    for x in c.inputs:
        if isinstance(x, tuple):
            lines += indent(_write_bits([(literal(x[0] & ((1 << 64) - 1)), x[1])]))
            if x[1] > 64:
                raise unsupported(f"a constant of {x[1]} bits in the calculation '{c.name}'")
            continue
        header = by_name[x.header] if isinstance(x, Field) else x
        body: list[str] = []
        for f in [x] if isinstance(x, Field) else x.fields:
            body += _write_field(emitter, f)
        if header.metadata:
            lines += indent(body)
        else:
            lines += [f"    if get(phv, {emitter.layout.valid[header]}) != U(0):", *indent(body, "        ")]
    lines.append("    n = (nb + 7) >> 3")
    if c.payload:
        lines += ["    copy_bytes(inp, pay, buf, n, end - pay)", "    n += end - pay"]
    return [*lines, f"    return {algorithm}(buf, 0, n)"]


def _write_bits(values: list[tuple[str, int]]) -> list[str]:
    out = []
    for text, width in values:
        out += [f"out_bits(buf, nb, {width}, {text})", f"nb += {width}"]
    return out


def _write_field(emitter: Emitter, f: Field) -> list[str]:
    at = emitter.layout.address(f)
    if f.varbit:
        n = emitter.layout.varbit_bits[f]
        return [
            f"for i in range(0, int64(get(phv, {n})), 8):",
            f"    out_bits(buf, nb + i, 8, get(phv, {at} + (i >> 6)) >> U(56 - (i & 63)))",
            f"nb += int64(get(phv, {n}))",
        ]
    out, width = [], f.width
    for k in range(words(f.width)):
        take = width % 64 or 64
        out += _write_bits([(f"get(phv, {at + k})", take)])
        width -= take
    return out


def _sum_lines(
    emitter: Emitter, c: ir.Calculation, by_name: dict[str, Header], valid: set[Header]
) -> list[str]:
    """csum16 of the inputs that are there when just `valid` are: 2**16 is 1 modulo 0xffff, so a field counts
    shifted to where its last bit stands in a 16-bit word, whichever word that is."""
    fields: list[tuple[str, int]] = []
    for x in c.inputs:
        if isinstance(x, tuple):
            if x[1] > 64:
                raise unsupported(f"a constant of {x[1]} bits in the calculation '{c.name}'")
            fields.append((literal(x[0]), x[1]))
            continue
        header = by_name[x.header] if isinstance(x, Field) else x
        if not header.metadata and header not in valid:
            continue
        for f in [x] if isinstance(x, Field) else x.fields:
            width, at = f.width, emitter.layout.address(f)
            for k in range(words(f.width)):
                take = width % 64 or 64
                fields.append((f"get(phv, {at + k})", take))
                width -= take
    end, lines = 0, ["total = U(0)"]
    for text, width in fields:
        end += width
        shift = -end % 16
        if width + shift > 48:  # keep the sum of many below 2**64
            text, width = f"halves({text})", 33
        lines.append(f"total += {text} << U({shift})" if shift else f"total += {text}")
    if c.payload:
        lines.append(f"total += payload_sum(inp, pay, end, {(end + 7) // 8 % 2})")
    return [*lines, "return fold(total)"]


def checksum_functions(emitter: Emitter) -> tuple[list[str], list[str]]:
    """def verify and def update."""
    verify = ["def verify(phv, buf, inp, pay, end):", "    pass"]
    update = ["def update(phv, buf, inp, pay, end):", "    pass"]
    by_name = {h.name: h for h in emitter.program.headers}
    for c in emitter.program.checksums:
        emitter.calculations[c.calculation.name] = c.calculation
        payload = ", inp, pay, end" if c.calculation.payload else ""
        call = f"{calculation_name(c.calculation)}(phv, buf{payload})"
        at, width = emitter.layout.address(c.target), c.target.width
        if width > 64:
            raise unsupported(f"the checksum '{c.name}' of {width} bits")
        values = emitter.values()
        condition = "True" if c.condition is None else values.boolean(c.condition)
        emitter.done(values)
        if c.verify:
            header = by_name[c.target.header]
            there = "True" if header.metadata else f"get(phv, {emitter.layout.valid[header]}) != U(0)"
            verify += indent([*values.lines, f"if {there} and {condition}:"])
            verify += [f"        if {call} != get(phv, {at}): put(phv, {CHECKSUM_ERROR}, U(1))"]
        if c.update:
            emitter.writes.add(at)
            cut = call if width >= 64 else f"{call} & {literal((1 << width) - 1)}"
            update += indent([*values.lines, f"if {condition}:", f"    put(phv, {at}, {cut})"])
    return verify, update
