"""Match keys: P4Runtime's ``FieldMatch`` messages and the target's values (P4Runtime 1.4, "Match Format").

A field that matches everything is left out of the message and has its widest value in the key, so that
there is one form of each key on either side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from p4.v1 import p4runtime_pb2

from switchreduce.sim.p4runtime import bytestrings
from switchreduce.sim.p4runtime.p4info import MatchField, Table
from switchreduce.sim.p4runtime.status import invalid
from switchreduce.sim.target import Exact, Lpm, Range, Ternary

KeyValue = Exact | Lpm | Ternary | Range


def decode_key(table: Table, match: Iterable[p4runtime_pb2.FieldMatch]) -> tuple[KeyValue, ...]:
    """The key that ``match`` describes, one value per field of the table, in the table's order.

    Raises RequestError(INVALID_ARGUMENT) when a field is unknown, twice, missing though exact, of another
    kind than the table's, spelled though it matches everything, or holds a value that does not fit.
    """
    given: dict[int, p4runtime_pb2.FieldMatch] = {}
    known = {field.id for field in table.fields}
    for item in match:
        if item.field_id not in known:
            raise invalid(f"table {table.name} has no key field with id {item.field_id}")
        if item.field_id in given:
            raise invalid(f"table {table.name}: key field id {item.field_id} is given twice")
        given[item.field_id] = item
    return tuple(_decode_field(table, field, given.get(field.id)) for field in table.fields)


def encode_key(table: Table, key: Sequence[KeyValue]) -> list[p4runtime_pb2.FieldMatch]:
    """The canonical messages of a key: shortest byte strings, no message where everything matches."""
    messages = []
    for field, value in zip(table.fields, key, strict=True):
        if field.kind == "exact" or value != _any_value(field):
            messages.append(_encode_field(field, value))
    return messages


def _any_value(field: MatchField) -> KeyValue:
    """The value of a non-exact field that matches everything."""
    if field.kind == "lpm":
        return Lpm(0, 0)
    if field.kind == "range":
        return Range(0, (1 << field.width) - 1)
    return Ternary(0, 0)


def _decode_field(table: Table, field: MatchField, item: p4runtime_pb2.FieldMatch | None) -> KeyValue:
    what = f"table {table.name}, key {field.name}"
    if item is None:
        if field.kind == "exact":
            raise invalid(f"{what}: an exact match cannot be left out")
        return _any_value(field)
    kind = item.WhichOneof("field_match_type")
    if kind != field.kind:
        raise invalid(f"{what}: the match is {kind or 'empty'}, the table's is {field.kind}")
    if kind == "exact":
        return Exact(bytestrings.decode(item.exact.value, field.width, what))
    if kind == "optional":
        return Ternary(bytestrings.decode(item.optional.value, field.width, what), (1 << field.width) - 1)
    if kind == "lpm":
        return _decode_lpm(field, item.lpm, what)
    if kind == "ternary":
        return _decode_ternary(field, item.ternary, what)
    return _decode_range(field, item.range, what)


def _decode_lpm(field: MatchField, lpm: p4runtime_pb2.FieldMatch.LPM, what: str) -> Lpm:
    value = bytestrings.decode(lpm.value, field.width, what)
    if not 0 < lpm.prefix_len <= field.width:
        raise invalid(f"{what}: prefix length {lpm.prefix_len} is not in 1..{field.width}")
    if value & ((1 << (field.width - lpm.prefix_len)) - 1):
        raise invalid(f"{what}: bits behind the prefix must be 0")
    return Lpm(value, lpm.prefix_len)


def _decode_ternary(field: MatchField, ternary: p4runtime_pb2.FieldMatch.Ternary, what: str) -> Ternary:
    value = bytestrings.decode(ternary.value, field.width, what)
    mask = bytestrings.decode(ternary.mask, field.width, f"{what} (mask)")
    if mask == 0:
        raise invalid(f"{what}: leave the field out to match everything")
    if value & ~mask:
        raise invalid(f"{what}: bits outside the mask must be 0")
    return Ternary(value, mask)


def _decode_range(field: MatchField, bounds: p4runtime_pb2.FieldMatch.Range, what: str) -> Range:
    low = bytestrings.decode(bounds.low, field.width, f"{what} (low)")
    high = bytestrings.decode(bounds.high, field.width, f"{what} (high)")
    if low > high:
        raise invalid(f"{what}: the range's low end is above its high end")
    if Range(low, high) == _any_value(field):
        raise invalid(f"{what}: leave the field out to match everything")
    return Range(low, high)


def _encode_field(field: MatchField, value: KeyValue) -> p4runtime_pb2.FieldMatch:
    message = p4runtime_pb2.FieldMatch(field_id=field.id)
    if isinstance(value, Exact):
        message.exact.value = bytestrings.encode(value.value)
    elif isinstance(value, Lpm):
        message.lpm.value = bytestrings.encode(value.value)
        message.lpm.prefix_len = value.prefix_len
    elif isinstance(value, Range):
        message.range.low = bytestrings.encode(value.low)
        message.range.high = bytestrings.encode(value.high)
    elif field.kind == "optional":
        message.optional.value = bytestrings.encode(value.value)
    else:
        message.ternary.value = bytestrings.encode(value.value)
        message.ternary.mask = bytestrings.encode(value.mask)
    return message
