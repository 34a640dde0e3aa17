"""Expressions and primitives of a BMv2 JSON file, turned into checked IR."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from switchreduce.sim.target import ir
from switchreduce.sim.target.hashing import ALGORITHMS
from switchreduce.sim.target.ir import Expr, Header, Op, Place, Stack, Statement, unsupported

Json = Any

_BINARY = frozenset(
    ["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>", "==", "!=", "<", "<=", ">", ">=", "and", "or"]
)
_CASTS = frozenset(["two_comp_mod", "usat_cast", "sat_cast"])
_UNARY = frozenset(["~", "not", "d2b", "b2d"])
_HASHES = frozenset(ALGORITHMS)


def hexstr(text: str) -> int:
    return int(text, 16)


@dataclass
class Names:
    """What names in the JSON stand for, filled while it is read."""

    headers: dict[str, Header] = field(default_factory=dict)
    stacks: dict[str, Stack] = field(default_factory=dict)
    registers: dict[str, ir.Register] = field(default_factory=dict)
    counters: dict[str, ir.CounterArray] = field(default_factory=dict)
    calculations: dict[str, ir.Calculation] = field(default_factory=dict)

    def header(self, name: str) -> Header:
        if name not in self.headers:
            raise unsupported(f"the header '{name}', which is not declared")
        return self.headers[name]

    def stack(self, name: str) -> Stack:
        if name not in self.stacks:
            raise unsupported(f"the header stack '{name}' (header unions are outside the subset)")
        return self.stacks[name]

    def field_value(self, target: list[str]) -> Expr:
        header = self.header(target[0])
        if target[1] == "$valid$":
            return valid_as_data(header)
        found = header.field(target[1])
        if found is None:
            raise unsupported(f"the hidden field '{target[0]}.{target[1]}'")
        if found.varbit:
            raise unsupported(f"reading the variable-length field '{found}' in an expression")
        return ir.Load(found)


def valid_as_data(header: Header) -> Expr:
    return Op("b2d", (ir.Valid(header),))


def expression(j: Json, names: Names, params: list[int]) -> Expr:
    """Any type-value object that yields a value. `params` are the widths of the action's parameters."""
    kind, value = j["type"], j["value"]
    if kind == "expression":
        return _operation(value, names, params) if "op" in value else expression(value, names, params)
    if kind == "field":
        return names.field_value(value)
    if kind == "hexstr":
        return ir.Const(hexstr(value))
    if kind == "bool":
        return ir.Bool(bool(value))
    if kind in ("local", "runtime_data"):
        return ir.Param(value, params[value])
    if kind == "stack_field":
        stack = names.stack(value[0])
        member = stack.headers[0].field(value[1])
        if member is None or member.varbit:
            raise unsupported(f"the stack field '{value[0]}.{value[1]}'")
        return ir.LoadLast(stack, member.index)
    if kind == "lookahead":
        return ir.Lookahead(value[0], value[1])
    raise unsupported(f"an operand of type '{kind}'")


def _operation(j: Json, names: Names, params: list[int]) -> Expr:
    op = j["op"]
    left, right = j.get("left"), j.get("right")

    def operand(x: Json) -> Expr:
        return expression(x, names, params)

    if op in ("==", "!=") and right["type"] == "header":
        return _compare_headers(names.header(left["value"]), names.header(right["value"]), op == "==")
    if op in ("==", "!=") and right["type"] in ("header_stack", "header_union"):
        raise unsupported(f"comparison of two {right['type'].replace('_', ' ')}s")
    if op == "valid":
        target = header_target(right, names, params)
        return ir.Valid(target) if isinstance(target, Header) else ir.ValidAt(*target)
    if op == "access_field":
        target = header_target(left, names, params)
        if isinstance(target, Header):
            return ir.Load(target.fields[right])
        stack, position = target
        if right == len(stack.headers[0].fields):  # BMv2 keeps the hidden $valid$ behind the declared fields
            return Op("b2d", (ir.ValidAt(stack, position),))
        return ir.LoadAt(stack, position, right)
    if op in ("last_stack_index", "size_stack"):
        count: Expr = ir.StackCount(names.stack(right["value"]))
        return count if op == "size_stack" else Op("-", (count, ir.Const(1)))
    if op == "?":
        return Op("?", (operand(j["cond"]), operand(left), operand(right)))
    if op in _UNARY:
        return Op(op, (operand(right),))
    if op in _BINARY or op in _CASTS:
        e = Op(op, (operand(left), operand(right)))
        if op in _CASTS and not isinstance(e.args[1], ir.Const):
            raise unsupported(f"'{op}' to a width that is not constant")
        return e
    raise unsupported(f"the operation '{op}'")


def _compare_headers(left: Header, right: Header, equal: bool) -> Expr:
    """BMv2 holds two headers equal when both are valid, of one type, and all fields agree."""
    if left.type_name != right.type_name:
        return ir.Bool(not equal)
    same: Expr = Op("and", (ir.Valid(left), ir.Valid(right)))
    for a, b in zip(left.fields, right.fields, strict=True):
        if a.varbit:
            raise unsupported(f"comparison of headers with the variable-length field '{a}'")
        same = Op("and", (same, Op("==", (ir.Load(a), ir.Load(b)))))
    return same if equal else Op("not", (same,))


def header_target(j: Json, names: Names, params: list[int]) -> Header | tuple[Stack, Expr]:
    """A header, named or chosen from a stack by an index."""
    while j["type"] == "expression" and "op" not in j["value"]:
        j = j["value"]
    if j["type"] == "header":
        return names.header(j["value"])
    if j["type"] == "expression" and j["value"]["op"] == "dereference_header_stack":
        stack = names.stack(j["value"]["left"]["value"])
        position = expression(j["value"]["right"], names, params)
        if isinstance(position, ir.Const) and 0 <= position.value < len(stack.headers):
            return stack.headers[position.value]
        return stack, position
    what = j["value"]["op"] if j["type"] == "expression" else j["type"]
    raise unsupported(f"a header given as '{what}'")


def place(j: Json, names: Names, params: list[int]) -> Place:
    e = expression(j, names, params)
    if isinstance(e, (ir.Load, ir.LoadLast, ir.LoadAt)):
        return e
    raise unsupported(f"assignment to '{j['value']}'")


# ---------------------------------------------------------------------------------------------- primitives


def body(primitives: list[Json], names: Names, params: list[int], owner: str) -> tuple[Statement, ...]:
    """An action's primitives, with its jumps put back into nested ifs."""
    for p in primitives:
        if p["op"] not in _PRIMITIVES and p["op"] not in ("_jump", "_jump_if_zero"):
            raise unsupported(f"the primitive '{p['op']}' (in '{owner}')")
    return _structured(primitives, 0, len(primitives), len(primitives), names, params, owner)


def _structured(
    ps: list[Json], i: int, end: int, follow: int, names: Names, params: list[int], owner: str
) -> tuple[Statement, ...]:
    """Statements i to end - 1; control goes on at `follow` after them, so a jump there is a fall-through."""
    out: list[Statement] = []
    while i < end:
        p = ps[i]
        if p["op"] == "_jump":
            if hexstr(p["parameters"][0]["value"]) not in (follow, end) or i != end - 1:
                raise unsupported(f"an unstructured jump (in '{owner}')")
            i += 1
        elif p["op"] == "_jump_if_zero":
            condition = expression(p["parameters"][0], names, params)
            if not ir.is_boolean(condition):
                condition = Op("d2b", (condition,))
            target = hexstr(p["parameters"][1]["value"])
            stop = end if target == follow else target
            if not i < stop <= end:
                raise unsupported(f"an unstructured jump (in '{owner}')")
            other: tuple[Statement, ...] = ()
            resume = stop
            then_end, then_follow = stop, (follow if stop == end else stop)
            before = ps[stop - 1]
            if stop - 1 > i and before["op"] == "_jump":
                after = hexstr(before["parameters"][0]["value"])
                after_stop = end if after == follow else after
                if stop <= after_stop <= end:
                    then_end, then_follow = stop - 1, after
                    other = _structured(ps, stop, after_stop, after, names, params, owner)
                    resume = after_stop
            then = _structured(ps, i + 1, then_end, then_follow, names, params, owner)
            out.append(ir.If(condition, then, other))
            i = resume
        else:
            statement = _PRIMITIVES[p["op"]](p["parameters"], names, params, owner)
            if statement is not None:
                out.append(statement)
            i += 1
    return tuple(out)


_Maker = Callable[[list[Json], Names, list[int], str], "Statement | None"]


def _assign(ps: list[Json], names: Names, params: list[int], owner: str) -> Statement:
    e = expression(ps[1], names, params)
    if ir.is_boolean(e):
        e = Op("b2d", (e,))
    if ps[0]["type"] == "field" and ps[0]["value"][1] == "$valid$":
        raise unsupported(f"assignment to '{ps[0]['value'][0]}.$valid$' (in '{owner}')")
    return ir.Assign(place(ps[0], names, params), e)


def _assign_varbit(ps: list[Json], names: Names, params: list[int], owner: str) -> Statement:
    raise unsupported(f"assignment of a variable-length field on its own (in '{owner}')")


def _assign_header(ps: list[Json], names: Names, params: list[int], owner: str) -> Statement:
    target, source = header_target(ps[0], names, params), header_target(ps[1], names, params)
    if isinstance(target, Header) and isinstance(source, Header):
        return ir.AssignHeader(target, source)
    for side in (target, source):
        header = side if isinstance(side, Header) else side[0].headers[0]
        if header.varbit:
            raise unsupported(f"assignment of '{header.name}' by index, since it has a variable length")
    return ir.AssignHeaderAt(target, source)


def _set_valid(valid: bool) -> _Maker:
    def make(ps: list[Json], names: Names, params: list[int], owner: str) -> Statement:
        target = header_target(ps[0], names, params)
        if isinstance(target, Header):
            return ir.SetValid(target, valid)
        if target[0].headers[0].varbit:
            raise unsupported(f"validity of '{target[0].name}' by index, since it has a variable length")
        return ir.SetValidAt(*target, valid)

    return make


def _shift(push: bool) -> _Maker:
    def make(ps: list[Json], names: Names, params: list[int], owner: str) -> Statement:
        stack = names.stack(ps[0]["value"])
        if ps[1]["type"] != "hexstr":
            raise unsupported(f"moving the stack '{stack.name}' by a number that is not constant")
        if stack.headers[0].varbit:
            raise unsupported(f"moving the stack '{stack.name}', whose headers have a variable length")
        return ir.Shift(stack, hexstr(ps[1]["value"]), push)

    return make


def _register(j: Json, names: Names) -> ir.Register:
    return names.registers[j["value"]]


def _hash(ps: list[Json], names: Names, params: list[int], owner: str) -> Statement:
    calculation = names.calculations[ps[2]["value"]]
    check_algorithm(calculation)
    base, limit = expression(ps[1], names, params), expression(ps[3], names, params)
    return ir.HashInto(place(ps[0], names, params), base, calculation, limit)


def check_algorithm(calculation: ir.Calculation) -> None:
    if calculation.algorithm not in _HASHES:
        raise unsupported(f"the hash algorithm '{calculation.algorithm}'")


def _field_list(ps: list[Json], i: int, names: Names, params: list[int]) -> Expr:
    return expression(ps[i], names, params) if len(ps) > i else ir.Const(0)


def _two(make: Callable[[Expr, Expr], Statement]) -> _Maker:
    return lambda ps, names, params, owner: make(
        expression(ps[0], names, params), _field_list(ps, 1, names, params)
    )


def _again(kind: str) -> _Maker:
    return lambda ps, names, params, owner: ir.Again(kind, _field_list(ps, 0, names, params))


_PRIMITIVES: dict[str, _Maker] = {
    "assign": _assign,
    "modify_field": _assign,
    "assign_VL": _assign_varbit,
    "assign_header": _assign_header,
    "copy_header": _assign_header,
    "assign_header_stack": lambda ps, names, params, owner: ir.AssignStack(
        names.stack(ps[0]["value"]), names.stack(ps[1]["value"])
    ),
    "add_header": _set_valid(True),
    "remove_header": _set_valid(False),
    "push": _shift(True),
    "pop": _shift(False),
    "register_read": lambda ps, names, params, owner: ir.RegisterRead(
        place(ps[0], names, params), _register(ps[1], names), expression(ps[2], names, params)
    ),
    "register_write": lambda ps, names, params, owner: ir.RegisterWrite(
        _register(ps[0], names), expression(ps[1], names, params), expression(ps[2], names, params)
    ),
    "count": lambda ps, names, params, owner: ir.Count(
        names.counters[ps[0]["value"]], expression(ps[1], names, params)
    ),
    "modify_field_with_hash_based_offset": _hash,
    "modify_field_rng_uniform": lambda ps, names, params, owner: ir.Random(
        place(ps[0], names, params), expression(ps[1], names, params), expression(ps[2], names, params)
    ),
    "drop": lambda ps, names, params, owner: ir.MarkToDrop(),
    "mark_to_drop": lambda ps, names, params, owner: ir.MarkToDrop(),
    "clone_ingress_pkt_to_egress": _two(ir.Clone),
    "clone_egress_pkt_to_egress": _two(ir.Clone),
    "resubmit": _again("resubmit"),
    "recirculate": _again("recirculate"),
    "truncate": lambda ps, names, params, owner: ir.Truncate(expression(ps[0], names, params)),
    "exit": lambda ps, names, params, owner: ir.Exit(),
    "no_op": lambda ps, names, params, owner: None,
    "log_msg": lambda ps, names, params, owner: None,  # has no effect on any packet
}
