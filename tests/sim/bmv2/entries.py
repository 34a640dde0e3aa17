"""Table entries, groups and sessions as P4Runtime writes them, for any program."""

from __future__ import annotations

from collections.abc import Sequence

from p4.v1.p4runtime_pb2 import Entity

from switchreduce.controller.entities import Schema
from switchreduce.sim.p4runtime.bytestrings import encode
from switchreduce.sim.target import Exact, Lpm, Range, Ternary

Key = Exact | Lpm | Range | Ternary | None  # None: any value
Replicas = Sequence[tuple[int, int]]  # (port, instance)


def table_entry(
    schema: Schema, table: str, key: Sequence[Key], action: str, *params: int, priority: int = 0
) -> Entity:
    """An entry of `table`; `key` has its match fields in order."""
    entity = Entity()
    entry = entity.table_entry
    info = schema.tables[table]
    entry.table_id, entry.priority = info.preamble.id, priority
    for field, value in zip(info.match_fields, key, strict=True):
        if value is None:
            continue
        match = entry.match.add(field_id=field.id)
        if isinstance(value, Lpm):
            match.lpm.value, match.lpm.prefix_len = encode(value.value), value.prefix_len
        elif isinstance(value, Range):
            match.range.low, match.range.high = encode(value.low), encode(value.high)
        elif isinstance(value, Ternary):
            match.ternary.value, match.ternary.mask = encode(value.value), encode(value.mask)
        elif field.match_type == field.OPTIONAL:
            match.optional.value = encode(value.value)
        else:
            match.exact.value = encode(value.value)
    entry.action.action.action_id = schema.actions[action].preamble.id
    for number, param in enumerate(params, 1):
        entry.action.action.params.add(param_id=number, value=encode(param))
    return entity


def multicast_group(group_id: int, replicas: Replicas) -> Entity:
    entity = Entity()
    group = entity.packet_replication_engine_entry.multicast_group_entry
    group.multicast_group_id = group_id
    for port, instance in replicas:
        group.replicas.add(egress_port=port, instance=instance)
    return entity


def clone_session(session_id: int, replicas: Replicas) -> Entity:
    entity = Entity()
    session = entity.packet_replication_engine_entry.clone_session_entry
    session.session_id = session_id
    for port, instance in replicas:
        session.replicas.add(egress_port=port, instance=instance)
    return entity
