"""A P4Info message indexed the way requests ask for it: by id."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from p4.config.v1 import p4info_pb2

from switchreduce.sim.p4runtime.status import Code, RequestError, invalid

MATCH_KINDS = {
    p4info_pb2.MatchField.EXACT: "exact",
    p4info_pb2.MatchField.LPM: "lpm",
    p4info_pb2.MatchField.TERNARY: "ternary",
    p4info_pb2.MatchField.RANGE: "range",
    p4info_pb2.MatchField.OPTIONAL: "optional",
}
# The kinds of match that P4Runtime orders by priority (P4Runtime 1.4, "TableEntry").
PRIORITY_KINDS = frozenset({"ternary", "range", "optional"})


@dataclass(frozen=True)
class MatchField:
    """A key field of a table; ``kind`` is exact, lpm, ternary, range or optional; ``width`` in bits."""

    id: int
    name: str
    kind: str
    width: int


@dataclass(frozen=True)
class Param:
    """A parameter of an action; ``width`` in bits."""

    id: int
    name: str
    width: int


@dataclass(frozen=True)
class Action:
    id: int
    name: str
    params: tuple[Param, ...]


@dataclass(frozen=True)
class ActionRef:
    """How a table may use an action."""

    in_entries: bool
    as_default: bool


@dataclass(frozen=True)
class Table:
    """A table. ``fields`` are in the order of the key."""

    id: int
    name: str
    fields: tuple[MatchField, ...]
    actions: dict[int, ActionRef]
    size: int
    is_const: bool
    has_const_default: bool
    direct_counter_id: int | None

    @property
    def needs_priority(self) -> bool:
        return any(field.kind in PRIORITY_KINDS for field in self.fields)


@dataclass(frozen=True)
class Counter:
    """An indirect counter of ``size`` cells."""

    id: int
    name: str
    size: int


@dataclass(frozen=True)
class PacketField:
    """A field of a controller header; ``width`` in bits."""

    id: int
    name: str
    width: int


@dataclass(frozen=True)
class Schema:
    """Everything in a P4Info that a request can name, by id."""

    tables: dict[int, Table]
    actions: dict[int, Action]
    counters: dict[int, Counter]
    packet_in: tuple[PacketField, ...]
    packet_out: tuple[PacketField, ...]

    def action_named(self, name: str) -> Action | None:
        return self._actions_by_name.get(name)

    @cached_property
    def _actions_by_name(self) -> dict[str, Action]:
        return {action.name: action for action in self.actions.values()}


def index_p4info(p4info: p4info_pb2.P4Info) -> Schema:
    """Checks a P4Info against itself and indexes it.

    Raises RequestError: INVALID_ARGUMENT where it contradicts itself, UNIMPLEMENTED where it describes
    something that this switch does not have.
    """
    _refuse_unsupported(p4info)
    actions = {action.preamble.id: _action(action) for action in p4info.actions}
    counter_tables = {counter.direct_table_id: counter.preamble.id for counter in p4info.direct_counters}
    tables = {table.preamble.id: _table(table, actions, counter_tables) for table in p4info.tables}
    counters = {
        counter.preamble.id: Counter(counter.preamble.id, counter.preamble.name, counter.size)
        for counter in p4info.counters
    }
    for kind, indexed, listed in (
        ("table", tables, p4info.tables),
        ("action", actions, p4info.actions),
        ("counter", counters, p4info.counters),
    ):
        if len(indexed) != len(listed) or 0 in indexed:
            raise invalid(f"the P4Info has a {kind} id twice, or a {kind} id 0")
    unknown = set(counter_tables) - set(tables)
    if unknown:
        raise invalid("the P4Info has a direct counter without its table")
    return Schema(
        tables=tables,
        actions=actions,
        counters=counters,
        packet_in=_controller_header(p4info, "packet_in"),
        packet_out=_controller_header(p4info, "packet_out"),
    )


def _refuse_unsupported(p4info: p4info_pb2.P4Info) -> None:
    for kind, listed in (
        ("action profile", p4info.action_profiles),
        ("meter", p4info.meters),
        ("direct meter", p4info.direct_meters),
        ("value set", p4info.value_sets),
        ("digest", p4info.digests),
    ):
        if listed:
            raise RequestError(Code.UNIMPLEMENTED, f"{kind} {listed[0].preamble.name}: not supported here")
    for name, new_type in p4info.type_info.new_types.items():
        if new_type.HasField("translated_type"):
            raise RequestError(Code.UNIMPLEMENTED, f"type {name}: no @p4runtime_translation here")
    if p4info.externs:
        raise RequestError(Code.UNIMPLEMENTED, "P4Info externs are not supported here")


def _action(action: p4info_pb2.Action) -> Action:
    params = tuple(Param(param.id, param.name, param.bitwidth) for param in action.params)
    for param in params:
        if param.width <= 0:
            raise RequestError(
                Code.UNIMPLEMENTED,
                f"action {action.preamble.name}, parameter {param.name}: only bit<W> is supported here",
            )
    return Action(action.preamble.id, action.preamble.name, params)


def _table(table: p4info_pb2.Table, actions: dict[int, Action], counter_tables: dict[int, int]) -> Table:
    name = table.preamble.name
    fields = tuple(
        MatchField(field.id, field.name, MATCH_KINDS.get(field.match_type, ""), field.bitwidth)
        for field in table.match_fields
    )
    for field in fields:
        if not field.kind or field.width <= 0:
            raise RequestError(
                Code.UNIMPLEMENTED, f"table {name}, key {field.name}: this match is not supported here"
            )
    refs = {
        ref.id: ActionRef(
            in_entries=ref.scope != p4info_pb2.ActionRef.DEFAULT_ONLY,
            as_default=ref.scope != p4info_pb2.ActionRef.TABLE_ONLY,
        )
        for ref in table.action_refs
    }
    missing = set(refs) - set(actions)
    if missing:
        raise invalid(f"table {name} refers to action id {min(missing)}, which the P4Info lacks")
    return Table(
        id=table.preamble.id,
        name=name,
        fields=fields,
        actions=refs,
        size=table.size,
        is_const=table.is_const_table,
        has_const_default=table.const_default_action_id != 0,
        direct_counter_id=counter_tables.get(table.preamble.id),
    )


def _controller_header(p4info: p4info_pb2.P4Info, name: str) -> tuple[PacketField, ...]:
    """The fields of the controller header ``name`` in wire order; empty when the program has none."""
    for header in p4info.controller_packet_metadata:
        if header.preamble.name == name:
            fields = tuple(PacketField(field.id, field.name, field.bitwidth) for field in header.metadata)
            if any(field.width <= 0 for field in fields) or sum(field.width for field in fields) % 8:
                raise invalid(f"controller header {name}: its fields do not fill whole bytes")
            if len({field.id for field in fields}) != len(fields):
                raise invalid(f"controller header {name}: a field id twice")
            return fields
    return ()
