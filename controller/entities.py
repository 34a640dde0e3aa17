"""What a P4Runtime switch holds, as small typed values that encode and decode themselves.

They speak in the P4 program's names; a `Schema` made from its P4Info turns names into ids. Encodings are
those of the P4Runtime specification 1.3, sections 8.4 (byte strings), 9.1 (table entries) and 9.5
(multicast groups).
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Any

from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

MatchValue = int | tuple[int, int]  # exact: the value; LPM: (value, prefix length)


class Schema:
    """Ids of a program's tables, actions, counters and packet-in fields by name, and the reverse.

    Raises KeyError, naming the thing, when the program has no such thing.
    """

    def __init__(self, p4info: Any) -> None:
        self.p4info = p4info
        self.tables = {table.preamble.name: table for table in p4info.tables}
        self.actions = {action.preamble.name: action for action in p4info.actions}
        self.counters = {counter.preamble.name: counter for counter in p4info.counters}
        self._names = {t.preamble.id: name for name, t in self.tables.items()}
        self._names.update((a.preamble.id, name) for name, a in self.actions.items())
        self._packet_in = {
            meta.id: meta.name
            for header in p4info.controller_packet_metadata
            if header.preamble.name == "packet_in"
            for meta in header.metadata
        }

    def name(self, entity_id: int) -> str:
        return self._names[entity_id]

    def packet_in_fields(self, packet: Any) -> dict[str, int]:
        """The metadata of a p4.v1.PacketIn by field name."""
        return {self._packet_in[meta.metadata_id]: _int(meta.value) for meta in packet.metadata}


@dataclass(frozen=True)
class TableEntry:
    """An entry of a table with exact and LPM keys. `packets` is set when its direct counter was read."""

    table: str
    match: Mapping[str, MatchValue]
    action: str = "NoAction"
    params: Mapping[str, int] = field(default_factory=dict)
    packets: int | None = None

    def key(self) -> tuple[Any, ...]:
        """What identifies the entry within the switch."""
        return (self.table, tuple(sorted(self.match.items())))

    def encode(self, schema: Schema) -> Any:
        """As a p4.v1.Entity."""
        entity = p4runtime_pb2.Entity()
        entry = entity.table_entry
        table = schema.tables[self.table]
        entry.table_id = table.preamble.id
        if set(self.match) != {key.name for key in table.match_fields}:
            raise KeyError(f"{self.table} has the keys {[key.name for key in table.match_fields]}")
        for key in table.match_fields:
            value = self.match[key.name]
            if key.match_type == p4info_pb2.MatchField.LPM:
                if not isinstance(value, tuple):
                    raise TypeError(f"{self.table} matches {key.name} by prefix: give (value, prefix length)")
                if value[1] == 0:
                    continue  # the specification's "don't care" is to leave the field out
                match = entry.match.add(field_id=key.id)
                match.lpm.value = _bytes(value[0])
                match.lpm.prefix_len = value[1]
            elif isinstance(value, int):
                entry.match.add(field_id=key.id).exact.value = _bytes(value)
            else:
                raise TypeError(f"{self.table} matches {key.name} exactly: give one value")
        action = schema.actions[self.action]
        entry.action.action.action_id = action.preamble.id
        for param in action.params:
            entry.action.action.params.add(param_id=param.id, value=_bytes(self.params[param.name]))
        return entity

    @classmethod
    def decode(cls, schema: Schema, entry: Any) -> "TableEntry":
        """From a p4.v1.TableEntry that a switch sent."""
        name = schema.name(entry.table_id)
        keys = {key.id: key.name for key in schema.tables[name].match_fields}
        match: dict[str, MatchValue] = {}
        for part in entry.match:
            if part.HasField("lpm"):
                match[keys[part.field_id]] = (_int(part.lpm.value), part.lpm.prefix_len)
            else:
                match[keys[part.field_id]] = _int(part.exact.value)
        action_name = schema.name(entry.action.action.action_id)
        params = {param.id: param.name for param in schema.actions[action_name].params}
        return cls(
            table=name,
            match=match,
            action=action_name,
            params={params[p.param_id]: _int(p.value) for p in entry.action.action.params},
            packets=entry.counter_data.packet_count if entry.HasField("counter_data") else None,
        )


@dataclass(frozen=True)
class Replica:
    """One copy that a multicast group makes: out of `port`, told apart by `instance` (egress_rid)."""

    port: int
    instance: int


@dataclass(frozen=True)
class MulticastGroup:
    group_id: int
    replicas: tuple[Replica, ...] = ()

    def key(self) -> tuple[Any, ...]:
        return ("multicast group", self.group_id)

    def encode(self, schema: Schema) -> Any:
        """As a p4.v1.Entity."""
        entity = p4runtime_pb2.Entity()
        group = entity.packet_replication_engine_entry.multicast_group_entry
        group.multicast_group_id = self.group_id
        for replica in self.replicas:
            # the number rather than the newer `port` bytes: simple_switch_grpc's server reads no other
            group.replicas.add(egress_port=replica.port, instance=replica.instance)
        return entity


SwitchEntity = TableEntry | MulticastGroup


class Action(enum.Enum):
    INSERT = p4runtime_pb2.Update.INSERT
    MODIFY = p4runtime_pb2.Update.MODIFY
    DELETE = p4runtime_pb2.Update.DELETE


@dataclass(frozen=True)
class Update:
    """One change of a switch's state."""

    action: Action
    entity: SwitchEntity

    def encode(self, schema: Schema) -> Any:
        """As a p4.v1.Update."""
        return p4runtime_pb2.Update(type=self.action.value, entity=self.entity.encode(schema))

    def __str__(self) -> str:
        what = self.entity
        if isinstance(what, MulticastGroup):
            return f"{self.action.name.lower()} multicast group {what.group_id}"
        return f"{self.action.name.lower()} {what.table} {dict(what.match)}"


def parse_mac(text: str) -> int:
    """48 bits from ``aa:bb:cc:dd:ee:ff``.

    Raises:
        ValueError: it is something else.
    """
    parts = text.split(":")
    if len(parts) != 6 or not all(len(part) == 2 for part in parts):
        raise ValueError(f"{text!r} is not a MAC address like 02:53:52:00:00:01")
    return int.from_bytes(bytes(int(part, 16) for part in parts), "big")


def format_address(address: int) -> str:
    return str(IPv4Address(address))


def _bytes(value: int) -> bytes:
    """The shortest big-endian form, at least one byte (P4Runtime specification, section 8.4)."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def _int(value: bytes) -> int:
    return int.from_bytes(value, "big")
