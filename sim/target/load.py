"""Reads a BMv2 JSON file (p4c-bm2-ss output for v1model) into the IR and refuses what is outside the subset.

The format is BMv2's docs/JSON_format.md, version 2.x.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from switchreduce.errors import UnsupportedProgramError
from switchreduce.sim.target import ir
from switchreduce.sim.target.ir import Field, Header, Program, Stack, unsupported
from switchreduce.sim.target.load_expressions import Names, body, check_algorithm, expression, hexstr

Json = Any


def load_program(source: str | Path | bytes) -> Program:
    """Reads and checks a compiled program.

    `source` is a path or the JSON text itself. Raises UnsupportedProgramError, naming the construct, for a
    program outside the subset and for a file that is no BMv2 JSON.
    """
    text = source if isinstance(source, bytes) else Path(source).read_bytes()
    try:
        j = json.loads(text)
        version = j["__meta__"]["version"]
    except (ValueError, KeyError, TypeError, UnicodeDecodeError):
        raise UnsupportedProgramError(
            "this is not a compiled P4 program in BMv2's JSON format; compile it with p4c-bm2-ss"
        ) from None
    if version[0] != 2:
        raise unsupported(f"BMv2 JSON format version {'.'.join(map(str, version))}")
    j = _without_source_positions(j)
    digest = hashlib.sha256(json.dumps(j, sort_keys=True).encode()).hexdigest()
    try:
        return _program(j, digest)
    except (KeyError, IndexError, TypeError, AttributeError) as fault:
        raise UnsupportedProgramError(
            f"the compiled program is malformed ({type(fault).__name__}: {fault}); compile it again"
        ) from fault


def _without_source_positions(j: Json) -> Json:
    if isinstance(j, dict):
        return {k: _without_source_positions(v) for k, v in j.items() if k not in ("source_info", "program")}
    return [_without_source_positions(x) for x in j] if isinstance(j, list) else j


def _program(j: Json, digest: str) -> Program:
    for what in ("header_unions", "header_union_stacks", "parse_vsets", "extern_instances"):
        if j.get(what):
            raise unsupported(f"{what.replace('_', ' ')} ('{j[what][0]['name']}')")
    for meter in j.get("meter_arrays", []):
        raise unsupported(f"meters ('{meter['name']}')")
    names = Names()
    _headers(j, names)
    names.registers = {
        r["name"]: ir.Register(r["name"], r["size"], r["bitwidth"]) for r in j["register_arrays"]
    }
    for r in names.registers.values():
        _check_width(r.width, f"register '{r.name}'")
    direct = {c["binding"]: c["name"] for c in j["counter_arrays"] if c.get("is_direct")}
    names.counters = {
        c["name"]: ir.CounterArray(c["name"], c["size"])
        for c in j["counter_arrays"]
        if not c.get("is_direct")
    }
    names.calculations = {c["name"]: _calculation(c, names) for c in j["calculations"]}
    actions = {a["id"]: _action(a, names) for a in j["actions"]}
    pipelines = {p["name"]: _pipeline(p, names, actions, direct) for p in j["pipelines"]}
    if set(pipelines) != {"ingress", "egress"}:
        raise unsupported(f"the pipelines {sorted(pipelines)}; it runs v1model programs (ingress, egress)")
    if len(j["parsers"]) != 1 or len(j["deparsers"]) != 1:
        raise unsupported("more than one parser or deparser")
    parser, deparser = j["parsers"][0], j["deparsers"][0]
    if deparser.get("primitives"):
        raise unsupported("primitives in the deparser")
    states = {s["name"]: _state(s, names) for s in parser["parse_states"]}
    program = Program(
        headers=list(names.headers.values()),
        stacks=list(names.stacks.values()),
        registers=list(names.registers.values()),
        counters=list(names.counters.values()),
        errors={e[0]: e[1] for e in j.get("errors", [])},
        field_lists={f["id"]: _field_list(f, names) for f in j.get("field_lists", [])},
        states=states,
        start_state=parser["init_state"] if states else None,
        ingress=pipelines["ingress"],
        egress=pipelines["egress"],
        deparse_order=[names.header(h) for h in deparser["order"]],
        checksums=[_checksum(c, names) for c in j["checksums"]],
        aliases={a[0]: _plain_field(a[1], names) for a in j.get("field_aliases", [])},
        digest=digest,
    )
    for required in ("ingress_port", "packet_length", "instance_type", "egress_spec", "egress_port"):
        if program.standard(f"standard_metadata.{required}") is None:
            raise unsupported(f"a program without standard_metadata.{required}; it runs v1model programs")
    return program


# ---------------------------------------------------------------------------------------------- data


def _check_width(width: int, what: str) -> None:
    if not 0 < width <= ir.MAX_FIELD_BITS:
        raise unsupported(f"the width of {what}: {width} bits (at most {ir.MAX_FIELD_BITS})")


def _headers(j: Json, names: Names) -> None:
    types = {t["name"]: t for t in j["header_types"]}
    by_id: dict[int, Header] = {}
    for h in j["headers"]:
        t = types[h["header_type"]]
        if "length_exp" in t and t["length_exp"] is not None:
            raise unsupported(f"P4_14's length expression of header type '{t['name']}'")
        fields: list[Field] = []
        offset = 0
        for index, f in enumerate(t["fields"]):
            name, width, signed = f[0], f[1], len(f) > 2 and bool(f[2])
            if len(f) > 3 and f[3]:
                raise unsupported(f"the saturating field '{h['name']}.{name}'")
            varbit = width == "*"
            if varbit:
                width = _varbit_width(t, offset)
            else:
                _check_width(width, f"field '{h['name']}.{name}'")
            if signed and width > 64:
                raise unsupported(f"the signed field '{h['name']}.{name}' of more than 64 bits")
            fields.append(Field(h["name"], name, width, signed, index, offset, varbit))
            offset += 0 if varbit else width
        header = Header(h["name"], h["header_type"], h["id"], bool(h["metadata"]), fields)
        if not header.metadata and header.bits % 8:
            raise unsupported(f"the header '{header.name}' of {header.bits} bits, not a number of bytes")
        names.headers[header.name] = by_id[h["id"]] = header
    for s in j["header_stacks"]:
        stack = Stack(s["name"], [by_id[i] for i in s["header_ids"]])
        for position, header in enumerate(stack.headers):
            header.stack, header.position = stack, position
        names.stacks[stack.name] = stack


def _varbit_width(t: Json, offset: int) -> int:
    """The largest width of a header type's variable-length field, in bits."""
    if offset % 8:
        raise unsupported(f"a variable-length field that starts inside a byte (header type '{t['name']}')")
    fixed = sum(f[1] for f in t["fields"] if f[1] != "*")
    width = t["max_length"] * 8 - fixed
    if width > ir.VARBIT_MAX_BYTES * 8:
        raise unsupported(f"a variable-length field of {width} bits (header type '{t['name']}')")
    return width


def _plain_field(target: list[str], names: Names) -> Field:
    found = names.header(target[0]).field(target[1])
    if found is None:
        raise unsupported(f"the field '{target[0]}.{target[1]}' here")
    return found


def _field_list(j: Json, names: Names) -> list[Field]:
    fields = []
    for e in j["elements"]:
        if e["type"] != "field":
            raise unsupported(f"an element of type '{e['type']}' in the field list '{j['name']}'")
        if e["value"][1] != "$valid$":
            fields.append(_plain_field(e["value"], names))
    return fields


def _calculation(j: Json, names: Names) -> ir.Calculation:
    inputs: list[Field | Header | tuple[int, int]] = []
    payload = False
    for i in j["input"]:
        if payload:
            raise unsupported(f"the calculation '{j['name']}', whose payload is not its last input")
        if i["type"] == "field":
            inputs.append(_plain_field(i["value"], names))
        elif i["type"] == "hexstr":
            inputs.append((hexstr(i["value"]), i["bitwidth"]))
        elif i["type"] == "header":
            inputs.append(names.header(i["value"]))
        elif i["type"] == "payload":
            payload = True
        else:
            raise unsupported(f"an input of type '{i['type']}' in the calculation '{j['name']}'")
    return ir.Calculation(j["name"], j["algo"], tuple(inputs), payload)


def _checksum(j: Json, names: Names) -> ir.Checksum:
    if j["type"] != "generic":
        raise unsupported(f"the checksum type '{j['type']}'")
    calculation = names.calculations[j["calculation"]]
    check_algorithm(calculation)
    condition = expression(j["if_cond"], names, []) if j.get("if_cond") else None
    target = _plain_field(j["target"], names)
    return ir.Checksum(
        j["name"], target, calculation, j.get("verify", True), j.get("update", True), condition
    )


# ---------------------------------------------------------------------------------------------- parser


def _state(j: Json, names: Names) -> ir.ParserState:
    ops = [_parser_op(o, names, j["name"]) for o in j["parser_ops"]]
    keys = [_transition_key(k, names) for k in j["transition_key"]]
    # keys are joined byte-padded (docs/JSON_format.md, `transitions`)
    state = ir.ParserState(j["name"], [o for o in ops if o is not None], keys, [], None)
    for t in j["transitions"]:
        kind = t.get("type") or (
            "default" if t["value"] == "default" else "hexstr"
        )  # absent before format 2.7
        if kind == "default":
            state.default = t["next_state"]
        elif kind == "hexstr":
            mask = hexstr(t["mask"]) if t.get("mask") else None
            state.transitions.append(ir.Transition(hexstr(t["value"]), mask, t["next_state"]))
        else:
            raise unsupported(f"a transition of type '{kind}' (parser state '{j['name']}')")
    return state


def _transition_key(j: Json, names: Names) -> tuple[ir.Expr, int]:
    e = expression(j, names, [])
    if isinstance(e, ir.Lookahead):
        return e, e.width
    if isinstance(e, ir.Load):
        return e, e.field.width
    if isinstance(e, ir.LoadLast):
        return e, e.stack.headers[0].fields[e.index].width
    if j["type"] == "field":
        return e, 1  # $valid$
    raise unsupported(f"a parser transition on '{j['type']}'")


def _parser_op(j: Json, names: Names, state: str) -> ir.ParserOp | None:
    op, ps = j["op"], j["parameters"]
    if op in ("extract", "extract_VL"):
        bits = expression(ps[1], names, []) if op == "extract_VL" else None
        if ps[0]["type"] == "regular":
            header = names.header(ps[0]["value"])
            if (header.varbit is not None) != (op == "extract_VL"):
                raise unsupported(f"extracting '{header.name}' without its length (parser state '{state}')")
            return ir.Extract(header, bits)
        if ps[0]["type"] == "stack":
            stack = names.stack(ps[0]["value"])
            if bits is not None:
                raise unsupported(f"the stack '{stack.name}' of headers with a variable length")
            return ir.ExtractNext(stack)
        raise unsupported(f"extracting a '{ps[0]['type']}' (parser state '{state}')")
    if op == "set":
        value = expression(ps[1], names, [])
        if ir.is_boolean(value):
            value = ir.Op("b2d", (value,))
        target = expression(ps[0], names, [])
        if not isinstance(target, (ir.Load, ir.LoadLast, ir.LoadAt)):
            raise unsupported(f"setting '{ps[0]['value']}' (parser state '{state}')")
        return ir.Execute(ir.Assign(target, value))
    if op == "verify":
        return ir.Verify(expression(ps[0], names, []), expression(ps[1], names, []))
    if op == "advance":
        return ir.Advance(expression(ps[0], names, []))
    if op == "shift":
        return ir.Advance(ir.Const(int(ps[0]) * 8))
    if op == "primitive":
        statements = body(ps, names, [], f"parser state {state}")
        return ir.Execute(statements[0]) if statements else None
    raise unsupported(f"the parser operation '{op}'")


# ---------------------------------------------------------------------------------------------- control


def _action(j: Json, names: Names) -> ir.Action:
    params = [(p["name"], p["bitwidth"]) for p in j["runtime_data"]]
    for name, width in params:
        _check_width(width, f"parameter '{name}' of action '{j['name']}'")
    return ir.Action(
        j["name"], j["id"], params, body(j["primitives"], names, [w for _, w in params], j["name"])
    )


def _pipeline(j: Json, names: Names, actions: dict[int, ir.Action], direct: dict[str, str]) -> ir.Pipeline:
    if j.get("action_calls"):
        raise unsupported("action calls outside tables")
    if j.get("action_profiles"):
        raise unsupported(f"action profiles ('{j['action_profiles'][0]['name']}')")
    nodes: dict[str, ir.Node] = {}
    for t in j["tables"]:
        nodes[t["name"]] = _table(t, names, actions, direct.get(t["name"]))
    for c in j["conditionals"]:
        condition = expression(c["expression"], names, [])
        if not ir.is_boolean(condition):
            condition = ir.Op("d2b", (condition,))
        nodes[c["name"]] = ir.Conditional(c["name"], condition, c["true_next"], c["false_next"])
    return ir.Pipeline(j["name"], j["init_table"], nodes)


def _table(j: Json, names: Names, actions: dict[int, ir.Action], direct: str | None) -> ir.Table:
    name = j["name"]
    if j["type"] != "simple":
        raise unsupported(f"action profiles (table '{name}')")
    if j.get("support_timeout"):
        raise unsupported(f"idle time-outs (table '{name}')")
    if j.get("direct_meters"):
        raise unsupported(f"meters (table '{name}')")
    key = [_key_field(k, names, name) for k in j["key"]]
    by_ident = {i: actions[i] for i in j["action_ids"]}
    by_name = {a.name: a for a in by_ident.values()}
    next_tables = j["next_tables"]
    by_hit = "__HIT__" in next_tables or "__MISS__" in next_tables
    entry = j.get("default_entry")
    if entry is None:
        default: tuple[ir.Action, tuple[int, ...]] = (ir.Action("NoAction", -1, [], ()), ())
    else:
        default = (actions[entry["action_id"]], tuple(hexstr(x) for x in entry.get("action_data", [])))
    next_by_action = {} if by_hit else {by_name[a].ident: n for a, n in next_tables.items() if a in by_name}
    if not by_hit and default[0].ident not in next_by_action:
        next_by_action[default[0].ident] = j.get("base_default_next")
    return ir.Table(
        name=name,
        kind=j["match_type"],
        key=key,
        actions=list(by_ident.values()),
        max_size=int(j.get("max_size") or 1024),
        direct_counter=direct or (name if j.get("with_counters") else None),
        default=default,
        default_is_const=bool(entry and (entry.get("action_const") or entry.get("action_entry_const"))),
        const_entries=[_const_entry(e, key, actions, i) for i, e in enumerate(j.get("entries", []))],
        next_by_action=next_by_action,
        next_hit=next_tables.get("__HIT__"),
        next_miss=next_tables.get("__MISS__", j.get("base_default_next")),
        by_hit=by_hit,
    )


def _key_field(j: Json, names: Names, table: str) -> ir.KeyField:
    kind, target = j["match_type"], j["target"]
    if kind == "valid":
        value: ir.Expr = ir.Op(
            "b2d", (ir.Valid(names.header(target if isinstance(target, str) else target[0])),)
        )
        return ir.KeyField(j.get("name") or f"{target}.$valid$", "exact", 1, value)
    if kind == "optional":
        kind = "ternary"
    if kind not in ("exact", "lpm", "ternary", "range"):
        raise unsupported(f"the match kind '{kind}' (table '{table}')")
    value = names.field_value(target)
    width = value.field.width if isinstance(value, ir.Load) else 1
    if isinstance(value, ir.Load) and value.field.signed:
        value = ir.Op("&", (value, ir.Const((1 << width) - 1)))  # keys are compared as bits
    if j.get("mask"):
        value = ir.Op("&", (value, ir.Const(hexstr(j["mask"]))))
    return ir.KeyField(j.get("name") or ".".join(target), kind, width, value)


def _const_entry(
    j: Json, key: list[ir.KeyField], actions: dict[int, ir.Action], position: int
) -> ir.ConstEntry:
    parts: list[tuple[int, int]] = []
    for k, field in zip(j["match_key"], key, strict=True):
        full = (1 << field.width) - 1
        kind = k["match_type"]
        if kind == "exact":
            parts.append((hexstr(k["key"]), full))
        elif kind == "valid":
            parts.append((int(bool(k["key"])), full))
        elif kind == "lpm":
            parts.append((hexstr(k["key"]), k["prefix_length"]))
        elif kind in ("ternary", "optional"):
            parts.append((hexstr(k["key"]), hexstr(k["mask"])))
        elif kind == "range":
            parts.append((hexstr(k["start"]), hexstr(k["end"])))
        else:
            raise unsupported(f"a const entry of kind '{kind}'")
    entry = j["action_entry"]
    params = tuple(hexstr(x) for x in entry["action_data"])
    return ir.ConstEntry(parts, actions[entry["action_id"]], params, int(j.get("priority", position + 1)))
