"""Carrying the forwarding state over to a new pipeline (RECONCILE_AND_COMMIT).

What P4Runtime can write is carried: table entries, default actions, counters, multicast groups and clone
sessions, matched by name. Registers are the program's own and start at zero in the new pipeline.
"""

from __future__ import annotations

from typing import TypeVar

from p4.v1 import p4runtime_pb2

from switchreduce.sim.p4runtime.p4info import Schema
from switchreduce.sim.p4runtime.pipeline import Pipeline
from switchreduce.sim.p4runtime.status import Code, RequestError, invalid

Update = p4runtime_pb2.Update
Named = TypeVar("Named")


def carry_over(old: Pipeline, new: Pipeline) -> None:
    """Writes ``old``'s state to ``new``, which is fresh from its program.

    Raises RequestError(INVALID_ARGUMENT) when something does not exist in ``new`` or not alike.
    """
    try:
        for entity in _entities(old):
            _carry_entity(entity, old.schema, new)
    except RequestError as error:
        raise invalid(f"the forwarding state cannot be preserved: {error.message}") from None


def _entities(pipeline: Pipeline) -> list[p4runtime_pb2.Entity]:
    """Everything a controller can read of a pipeline; counters without packets are left out."""
    wildcards = [p4runtime_pb2.Entity() for _ in range(5)]
    wildcards[0].table_entry.SetInParent()
    wildcards[0].table_entry.counter_data.SetInParent()
    wildcards[1].table_entry.is_default_action = True
    wildcards[2].counter_entry.SetInParent()
    wildcards[3].packet_replication_engine_entry.multicast_group_entry.SetInParent()
    wildcards[4].packet_replication_engine_entry.clone_session_entry.SetInParent()
    return [entity for wildcard in wildcards for entity in pipeline.read(wildcard)]


def _carry_entity(entity: p4runtime_pb2.Entity, old: Schema, new: Pipeline) -> None:
    which = entity.WhichOneof("entity")
    if which == "table_entry":
        if not entity.table_entry.is_const:
            _carry_table_entry(entity, old, new)
    elif which == "counter_entry":
        if entity.counter_entry.data.packet_count or entity.counter_entry.data.byte_count:
            name = old.counters[entity.counter_entry.counter_id].name
            counter = _by_name(new.schema.counters, name, "counter")
            entity.counter_entry.counter_id = counter.id
            new.apply(Update(type=Update.MODIFY, entity=entity))
    else:
        new.apply(Update(type=Update.INSERT, entity=entity))


def _carry_table_entry(entity: p4runtime_pb2.Entity, old: Schema, new: Pipeline) -> None:
    entry = entity.table_entry
    old_table = old.tables[entry.table_id]
    new_table = _by_name(new.schema.tables, old_table.name, "table")
    field_names = {field.id: field.name for field in old_table.fields}
    new_fields = {field.id: field for field in new_table.fields}
    for match in entry.match:
        name = field_names[match.field_id]
        match.field_id = _by_name(new_fields, name, f"key of table {new_table.name}").id
    entry.table_id = new_table.id
    if entry.HasField("action"):
        _carry_action(entry.action.action, old, new.schema)
    if entry.is_default_action:
        new.apply(Update(type=Update.MODIFY, entity=entity))
        return
    try:
        new.apply(Update(type=Update.INSERT, entity=entity))
    except RequestError as error:
        # The new program may bring the entry along; the controller's version of it wins.
        if error.code != Code.ALREADY_EXISTS:
            raise
        new.apply(Update(type=Update.MODIFY, entity=entity))


def _carry_action(action: p4runtime_pb2.Action, old: Schema, new: Schema) -> None:
    old_action = old.actions[action.action_id]
    new_action = new.action_named(old_action.name)
    if new_action is None:
        raise invalid(f"there is no action {old_action.name}")
    names = {param.id: param.name for param in old_action.params}
    new_params = {param.id: param for param in new_action.params}
    for param in action.params:
        param.param_id = _by_name(new_params, names[param.param_id], f"parameter of {new_action.name}").id
    action.action_id = new_action.id


def _by_name(items: dict[int, Named], name: str, kind: str) -> Named:
    for item in items.values():
        if item.name == name:  # type: ignore[attr-defined]
            return item
    raise invalid(f"there is no {kind} {name}")
