"""Writing and reading entities: what is written is read back, and what each mistake is answered with."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from p4.v1 import p4runtime_pb2

MAC = bytes.fromhex("020000000001")
INVALID, DENIED = "INVALID_ARGUMENT", "PERMISSION_DENIED"


def canonical(value: int) -> bytes:
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def strings(width: int) -> st.SearchStrategy[bytes]:
    return st.integers(0, 2**width - 1).map(canonical)


@st.composite
def lpm_fields(draw: st.DrawFn) -> list[p4runtime_pb2.FieldMatch]:
    length = draw(st.integers(0, 32))
    if length == 0:
        return []
    field = p4runtime_pb2.FieldMatch(field_id=1)
    field.lpm.prefix_len = length
    field.lpm.value = canonical(draw(st.integers(0, 2**length - 1)) << (32 - length))
    return [field]


@st.composite
def acl_fields(draw: st.DrawFn) -> list[p4runtime_pb2.FieldMatch]:
    fields = []
    mask = draw(st.integers(0, 2**32 - 1))
    if mask:
        field = p4runtime_pb2.FieldMatch(field_id=1)
        field.ternary.mask = canonical(mask)
        field.ternary.value = canonical(draw(st.integers(0, 2**32 - 1)) & mask)
        fields.append(field)
    low, high = sorted((draw(st.integers(0, 255)), draw(st.integers(0, 255))))
    if (low, high) != (0, 255):
        field = p4runtime_pb2.FieldMatch(field_id=2)
        field.range.low, field.range.high = canonical(low), canonical(high)
        fields.append(field)
    if draw(st.booleans()):
        fields.append(p4runtime_pb2.FieldMatch(field_id=3, optional={"value": draw(strings(8))}))
    fields.append(p4runtime_pb2.FieldMatch(field_id=4, exact={"value": draw(strings(9))}))
    return fields


@st.composite
def entries(draw: st.DrawFn, kitchen) -> p4runtime_pb2.TableEntry:
    table = draw(st.sampled_from(["l2", "routes", "acl"]))
    entry = p4runtime_pb2.TableEntry(table_id=kitchen.ids[table], metadata=draw(st.binary(max_size=4)))
    entry.controller_metadata = draw(st.integers(0, 2**64 - 1))
    if table == "l2":
        entry.match.add(field_id=1).exact.value = draw(strings(48))
        actions = {"forward": [9], "multicast": [16], "set_mark": [8], "NoAction": []}
    elif table == "routes":
        entry.match.extend(draw(lpm_fields()))
        actions = {"forward": [9], "rewrite_and_forward": [9, 48], "drop": []}
    else:
        entry.match.extend(draw(acl_fields()))
        entry.priority = draw(st.integers(1, 2**31 - 1))
        actions = {"drop": [], "set_label": [32], "set_mark": [8]}
    name = draw(st.sampled_from(sorted(actions)))
    entry.action.action.action_id = kitchen.ids[name]
    for number, width in enumerate(actions[name], start=1):
        entry.action.action.params.add(param_id=number, value=draw(strings(width)))
    return entry


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_entry_is_read_as_it_was_written(cook, kitchen, data: st.DataObject) -> None:
    entry = data.draw(entries(kitchen))
    cook.write("INSERT", table_entry=entry)
    try:
        key = p4runtime_pb2.TableEntry(table_id=entry.table_id, match=entry.match, priority=entry.priority)
        everything = [each.table_entry for each in cook.read(table_entry={"table_id": entry.table_id})]
        assert entry in everything
        assert [each.table_entry for each in cook.read(table_entry=key)] == [entry] or not entry.match
    finally:
        cook.write("DELETE", table_entry=entry)
    assert cook.read(table_entry={"table_id": entry.table_id}) == []


def bad_entries(kitchen) -> dict[str, tuple[str, str, p4runtime_pb2.TableEntry]]:
    """What is wrong -> (update type, expected code, entry)."""
    entry = kitchen.entry
    TableEntry = p4runtime_pb2.TableEntry
    l2 = kitchen.ids["l2"]
    acl = {4: b"\x01"}

    def route(value: bytes, length: int) -> p4runtime_pb2.TableEntry:
        made = entry("routes", {}, "drop")
        made.match.add(field_id=1, lpm={"value": value, "prefix_len": length})
        return made

    def acl_with(**match: object) -> p4runtime_pb2.TableEntry:
        made = entry("acl", acl, "drop", priority=1)
        made.match.add(**match)
        return made

    twice = entry("l2", MAC, "forward", 1)
    twice.match.add().CopyFrom(twice.match[0])
    one_param_twice = entry("l2", MAC, "forward", 1)
    one_param_twice.action.action.params.add(param_id=1, value=b"\1")
    profile = entry("l2", MAC, None)
    profile.action.action_profile_member_id = 1
    full_range = {"field_id": 2, "range": {"low": b"\0", "high": b"\xff"}}
    default = {"is_default_action": True}
    return {
        "no table": ("INSERT", INVALID, TableEntry()),
        "another object's id": ("INSERT", INVALID, TableEntry(table_id=kitchen.ids["by_port"])),
        "is_const": ("INSERT", INVALID, entry("l2", MAC, "forward", 1, is_const=True)),
        "no action": ("INSERT", INVALID, entry("l2", MAC, None)),
        "action profile": ("INSERT", INVALID, profile),
        "another table's action": ("INSERT", INVALID, entry("l2", MAC, "set_label", 1)),
        "default-only action": ("INSERT", DENIED, entry("l2", MAC, "drop")),
        "parameter missing": ("INSERT", INVALID, entry("l2", MAC, "forward")),
        "parameter too many": ("INSERT", INVALID, entry("l2", MAC, "forward", 1, 2)),
        "parameter twice": ("INSERT", INVALID, one_param_twice),
        "parameter too big": ("INSERT", INVALID, entry("l2", MAC, "forward", 512)),
        "exact field missing": ("INSERT", INVALID, entry("l2", {}, "forward", 1)),
        "field unknown": ("INSERT", INVALID, entry("l2", {1: MAC, 2: MAC}, "forward", 1)),
        "field twice": ("INSERT", INVALID, twice),
        "field too big": ("INSERT", INVALID, entry("l2", b"\1" + MAC, "forward", 1)),
        "field empty": ("INSERT", INVALID, entry("l2", b"", "forward", 1)),
        "wrong kind": ("INSERT", INVALID, entry("routes", b"\1", "drop")),
        "prefix of length 0": ("INSERT", INVALID, route(b"\0", 0)),
        "prefix too long": ("INSERT", INVALID, route(b"\1", 33)),
        "bits behind the prefix": ("INSERT", INVALID, route(b"\1", 24)),
        "mask of zeros": ("INSERT", INVALID, acl_with(field_id=1, ternary={"mask": b"\0", "value": b"\0"})),
        "bits outside the mask": (
            "INSERT", INVALID, acl_with(field_id=1, ternary={"value": b"\3", "mask": b"\1"}),
        ),
        "range of everything": ("INSERT", INVALID, acl_with(**full_range)),
        "range upside down": ("INSERT", INVALID, acl_with(field_id=2, range={"low": b"\2", "high": b"\1"})),
        "priority missing": ("INSERT", INVALID, entry("acl", acl, "drop")),
        "priority negative": ("INSERT", INVALID, entry("acl", acl, "drop", priority=-1)),
        "priority superfluous": ("INSERT", INVALID, entry("l2", MAC, "forward", 1, priority=1)),
        "no direct counter": ("INSERT", INVALID, entry("l2", MAC, "forward", 1, counter_data={})),
        "negative count": ("INSERT", INVALID, entry("routes", {}, "drop", counter_data={"packet_count": -1})),
        "meter": ("INSERT", INVALID, entry("l2", MAC, "forward", 1, meter_config={})),
        "idle timeout": ("INSERT", INVALID, entry("l2", MAC, "forward", 1, idle_timeout_ns=1)),
        "modify what is not there": ("MODIFY", "NOT_FOUND", entry("l2", MAC, "forward", 1)),
        "delete what is not there": ("DELETE", "NOT_FOUND", entry("l2", MAC, None)),
        "no type": ("UNSPECIFIED", INVALID, entry("l2", MAC, "forward", 1)),
        "insert in a const table": ("INSERT", DENIED, entry("known_types", b"\1", "set_mark", 1)),
        "delete in a const table": ("DELETE", DENIED, entry("known_types", b"\x08\x00", None)),
        "modify in a const table": ("MODIFY", DENIED, entry("known_types", b"\x08\x00", "set_mark", 1)),
        "insert in a table without key": ("INSERT", INVALID, entry("always", {}, "set_mark", 1)),
        "insert a default": ("INSERT", INVALID, TableEntry(table_id=l2, **default)),
        "delete a default": ("DELETE", INVALID, TableEntry(table_id=l2, **default)),
        "default with match": ("MODIFY", INVALID, entry("l2", MAC, "forward", 1, **default)),
        "default with priority": ("MODIFY", INVALID, entry("acl", {}, "drop", priority=1, **default)),
        "const default": ("MODIFY", DENIED, entry("known_types", {}, "set_mark", 1, **default)),
        "table-only action as default": ("MODIFY", DENIED, entry("l2", {}, "set_mark", 1, **default)),
    }  # fmt: skip


def test_each_mistake_in_an_entry_has_its_code(cook, kitchen, error_codes: Callable) -> None:
    cases = bad_entries(kitchen)
    before = cook.read(table_entry=p4runtime_pb2.TableEntry())
    updates = [
        p4runtime_pb2.Update(type=kind, entity=p4runtime_pb2.Entity(table_entry=entry))
        for kind, _, entry in cases.values()
    ]
    answers = []
    for update in updates:
        with pytest.raises(grpc.RpcError) as failed:
            cook.stub.Write(cook.request(update))
        answers.extend(error_codes(failed.value))
    expected = {name: code for name, (_, code, _) in cases.items()}
    assert dict(zip(cases, answers, strict=True)) == expected
    assert cook.read(table_entry=p4runtime_pb2.TableEntry()) == before


def test_a_batch_goes_on_after_an_error_and_reports_each_update(cook, kitchen, error_codes: Callable) -> None:
    entry = kitchen.entry("l2", MAC, "forward", 1)
    update = p4runtime_pb2.Update(type="INSERT", entity={"table_entry": entry})
    other = p4runtime_pb2.Update(
        type="INSERT", entity={"table_entry": kitchen.entry("l2", b"\2", "forward", 1)}
    )
    with pytest.raises(grpc.RpcError) as failed:
        cook.stub.Write(cook.request(update, update, other))
    assert error_codes(failed.value) == ["OK", "ALREADY_EXISTS", "OK"]
    assert len(cook.read(table_entry={"table_id": kitchen.ids["l2"]})) == 2


def test_a_failed_batch_of_any_size_fits_a_default_clients_metadata(cook, kitchen) -> None:
    update = p4runtime_pb2.Update(type="DELETE", entity={"table_entry": kitchen.entry("l2", MAC, None)})
    with pytest.raises(grpc.RpcError) as failed:
        cook.stub.Write(cook.request(*[update] * 100))
    assert failed.value.code() == grpc.StatusCode.UNKNOWN
    assert "100 of 100 updates failed; update 0: table Forward.l2 has no such entry" in failed.value.details()


def test_a_full_table_is_resource_exhausted(cook, kitchen, error_codes: Callable) -> None:
    updates = [
        p4runtime_pb2.Update(
            type="INSERT", entity={"table_entry": kitchen.entry("l2", bytes([i + 1]), "forward", 1)}
        )
        for i in range(17)
    ]
    with pytest.raises(grpc.RpcError) as failed:
        cook.stub.Write(cook.request(*updates))
    assert error_codes(failed.value) == ["OK"] * 16 + ["RESOURCE_EXHAUSTED"]


def test_modify_replaces_the_action_and_delete_looks_at_the_key_alone(cook, kitchen) -> None:
    cook.write("INSERT", table_entry=kitchen.entry("l2", MAC, "forward", 1, metadata=b"a"))
    changed = kitchen.entry("l2", MAC, "multicast", 2, metadata=b"b")
    cook.write("MODIFY", table_entry=changed)
    assert [each.table_entry for each in cook.read(table_entry={"table_id": kitchen.ids["l2"]})] == [changed]
    # A MODIFY without an action leaves it as it is.
    cook.write("MODIFY", table_entry=kitchen.entry("l2", MAC, None))
    assert [each.table_entry for each in cook.read(table_entry={"table_id": kitchen.ids["l2"]})] == [changed]
    cook.write("DELETE", table_entry=kitchen.entry("l2", bytes(3) + MAC, "set_label", 10**9))
    assert cook.read(table_entry={"table_id": kitchen.ids["l2"]}) == []


def test_default_entries_are_set_read_and_reset(cook, kitchen) -> None:
    def default() -> p4runtime_pb2.TableEntry:
        request = p4runtime_pb2.TableEntry(table_id=kitchen.ids["l2"], is_default_action=True)
        (entity,) = cook.read(table_entry=request)
        return entity.table_entry

    original = default()
    assert original == kitchen.entry("l2", {}, "drop", is_default_action=True)
    changed = kitchen.entry("l2", {}, "forward", 9, is_default_action=True, metadata=b"mine")
    cook.write("MODIFY", table_entry=changed)
    assert default() == changed
    cook.write("MODIFY", table_entry=kitchen.entry("l2", {}, None, is_default_action=True))
    assert default() == original


def test_wildcards_and_filters(cook, kitchen) -> None:
    first = kitchen.entry("l2", b"\1", "forward", 1, metadata=b"m")
    second = kitchen.entry("l2", b"\2", "multicast", 1, controller_metadata=8)
    high = kitchen.entry("acl", {4: b"\1"}, "drop", priority=7)
    low = kitchen.entry("acl", {4: b"\1"}, "drop", priority=3)
    for entry in (first, second, high, low):
        cook.write("INSERT", table_entry=entry)

    def read(**request: object) -> list[p4runtime_pb2.TableEntry]:
        return [each.table_entry for each in cook.read(table_entry=request)]

    constants = [each for each in read() if each.is_const]
    assert {each.match[0].exact.value for each in constants} == {b"\x08\x00", b"\x08\x06"}
    assert {each.table_id for each in constants} == {kitchen.ids["known_types"]}
    assert all(entry in read() for entry in (first, second, high, low))
    l2, acl = kitchen.ids["l2"], kitchen.ids["acl"]
    assert read(table_id=l2, match=first.match) == [first]
    assert read(table_id=l2, match=kitchen.entry("l2", b"\3", None).match) == []
    assert read(table_id=l2, action={"action": {"action_id": kitchen.ids["multicast"]}}) == [second]
    assert read(table_id=l2, metadata=b"m") == [first]
    assert read(table_id=l2, controller_metadata=8) == [second]
    assert read(table_id=acl, priority=3) == [low]
    assert len(read(table_id=acl, match=low.match)) == 2
    assert len(read(is_default_action=True)) == len(kitchen.p4info.tables)


def test_direct_counters(cook, kitchen, error_codes: Callable) -> None:
    entry = kitchen.entry("routes", {}, "drop", counter_data={"packet_count": 2, "byte_count": 100})
    entry.match.add(field_id=1, lpm={"value": b"\x0a\0\0\0", "prefix_len": 8})
    cook.write("INSERT", table_entry=entry)
    request = p4runtime_pb2.TableEntry(table_id=entry.table_id, counter_data={})
    assert [each.table_entry for each in cook.read(table_entry=request)] == [entry]
    key = p4runtime_pb2.TableEntry(table_id=entry.table_id, match=entry.match)
    counted = p4runtime_pb2.DirectCounterEntry(table_entry=key, data=entry.counter_data)
    for wildcard in ({}, {"table_entry": {"table_id": entry.table_id}}, {"table_entry": key}):
        assert [each.direct_counter_entry for each in cook.read(direct_counter_entry=wildcard)] == [counted]
    counted.data.packet_count = 2**63 - 1
    cook.write("MODIFY", direct_counter_entry=counted)
    assert [each.direct_counter_entry for each in cook.read(direct_counter_entry={})] == [counted]
    key.match[0].lpm.prefix_len = 7
    for kind, code in (("MODIFY", "NOT_FOUND"), ("INSERT", "INVALID_ARGUMENT")):
        with pytest.raises(grpc.RpcError) as failed:
            cook.write(kind, direct_counter_entry={"table_entry": key, "data": {}})
        assert error_codes(failed.value) == [code]


def test_indirect_counters(cook, kitchen, error_codes: Callable) -> None:
    counter = kitchen.ids["by_port"]
    cell = p4runtime_pb2.CounterEntry(
        counter_id=counter, index={"index": 3}, data={"packet_count": 5, "byte_count": 2**40}
    )
    cook.write("MODIFY", counter_entry=cell)
    assert [
        each.counter_entry for each in cook.read(counter_entry={"counter_id": counter, "index": {"index": 3}})
    ] == [cell]
    assert len(cook.read(counter_entry={"counter_id": counter})) == 16
    assert cook.read(counter_entry={}) == cook.read(counter_entry={"counter_id": counter})
    cook.write("MODIFY", counter_entry={"counter_id": counter, "data": {"packet_count": 1}})
    assert {each.counter_entry.data.packet_count for each in cook.read(counter_entry={})} == {1}
    for kind, index, code in (
        ("MODIFY", -1, "INVALID_ARGUMENT"),
        ("MODIFY", 16, "OUT_OF_RANGE"),
        ("INSERT", 1, "INVALID_ARGUMENT"),
        ("DELETE", 1, "INVALID_ARGUMENT"),
    ):
        with pytest.raises(grpc.RpcError) as failed:
            cook.write(kind, counter_entry={"counter_id": counter, "index": {"index": index}, "data": {}})
        assert error_codes(failed.value) == [code]


@pytest.mark.parametrize("replica", [{"egress_port": 3, "instance": 1}, {"port": b"\3", "instance": 1}])
def test_multicast_groups_and_clone_sessions_are_read_as_written(cook, replica: dict[str, object]) -> None:
    def entity(kind: str, **fields: object) -> dict[str, object]:
        return {"packet_replication_engine_entry": {kind: fields}}

    for kind, key in (("multicast_group_entry", "multicast_group_id"), ("clone_session_entry", "session_id")):
        written = p4runtime_pb2.Entity(**entity(kind, **{key: 5}, replicas=[replica, {"egress_port": 4}]))
        cook.write("INSERT", packet_replication_engine_entry=written.packet_replication_engine_entry)
        other = p4runtime_pb2.Entity(**entity(kind, **{key: 6}))
        cook.write("INSERT", packet_replication_engine_entry=other.packet_replication_engine_entry)
        assert cook.read(**entity(kind, **{key: 5})) == [written]
        assert cook.read(**entity(kind)) == [written, other]
        cook.write("MODIFY", **entity(kind, **{key: 5}))
        assert cook.read(**entity(kind, **{key: 5})) == [p4runtime_pb2.Entity(**entity(kind, **{key: 5}))]
        cook.write("DELETE", **entity(kind, **{key: 5}))
        assert cook.read(**entity(kind)) == [other]


def group(group_id: int, *replicas: dict[str, object]) -> dict[str, object]:
    return {"multicast_group_entry": {"multicast_group_id": group_id, "replicas": replicas}}


@pytest.mark.parametrize(
    ("kind", "code", "entry"),
    [
        ("INSERT", INVALID, {}),
        ("INSERT", INVALID, {"multicast_group_entry": {}}),
        ("INSERT", INVALID, group(1, {})),
        ("INSERT", INVALID, group(1, {"egress_port": 512})),
        ("INSERT", INVALID, group(1, {"port": b"\2\0"})),
        ("INSERT", INVALID, group(1, {"egress_port": 1, "instance": 2**16})),
        ("INSERT", INVALID, group(1, {"egress_port": 1}, {"port": b"\1"})),
        ("INSERT", INVALID, group(2**16)),
        ("MODIFY", "NOT_FOUND", group(1)),
        ("DELETE", "NOT_FOUND", {"clone_session_entry": {"session_id": 1}}),
        ("INSERT", INVALID, {"clone_session_entry": {"session_id": 0}}),
        ("INSERT", INVALID, {"clone_session_entry": {"session_id": 2**15}}),
        ("INSERT", INVALID, {"clone_session_entry": {"session_id": 1, "packet_length_bytes": -1}}),
        ("INSERT", "UNIMPLEMENTED", {"clone_session_entry": {"session_id": 1, "class_of_service": 1}}),
    ],
)
def test_each_mistake_in_replication_has_its_code(
    cook, error_codes: Callable, kind: str, code: str, entry: dict[str, object]
) -> None:
    with pytest.raises(grpc.RpcError) as failed:
        cook.write(kind, packet_replication_engine_entry=entry)
    assert error_codes(failed.value) == [code]


@pytest.mark.parametrize(
    "entity",
    ["extern_entry", "action_profile_member", "action_profile_group", "meter_entry", "direct_meter_entry",
     "value_set_entry", "register_entry", "digest_entry"],
)  # fmt: skip
def test_other_entities_are_unimplemented(cook, error_codes: Callable, entity: str) -> None:
    for call in (lambda: cook.write("MODIFY", **{entity: {}}), lambda: cook.read(**{entity: {}})):
        with pytest.raises(grpc.RpcError) as failed:
            call()
        assert error_codes(failed.value) == ["UNIMPLEMENTED"]


def test_a_read_answers_what_it_can_and_reports_each_request(cook, kitchen, error_codes: Callable) -> None:
    cook.write("INSERT", table_entry=kitchen.entry("l2", MAC, "forward", 1))
    request = p4runtime_pb2.ReadRequest(device_id=3)
    request.entities.add(table_entry={"table_id": 12345})
    request.entities.add(table_entry={"table_id": kitchen.ids["l2"]})
    request.entities.add()
    found: list[p4runtime_pb2.ReadResponse] = []
    with pytest.raises(grpc.RpcError) as failed:
        found.extend(cook.stub.Read(request))  # keeps what came before the error
    assert sum(len(response.entities) for response in found) == 1
    assert error_codes(failed.value) == [INVALID, "OK", INVALID]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"device_id": 4}, grpc.StatusCode.NOT_FOUND),
        ({"role": "sdn"}, grpc.StatusCode.NOT_FOUND),
        ({"election_id": {"low": 99}}, grpc.StatusCode.PERMISSION_DENIED),
        ({"atomicity": "ROLLBACK_ON_ERROR"}, grpc.StatusCode.UNIMPLEMENTED),
        ({"atomicity": "DATAPLANE_ATOMIC"}, grpc.StatusCode.UNIMPLEMENTED),
    ],
)
def test_a_write_request_that_is_wrong_as_a_whole(
    cook, change: dict[str, object], code: grpc.StatusCode
) -> None:
    request = cook.request()
    request.MergeFrom(p4runtime_pb2.WriteRequest(**change))
    with pytest.raises(grpc.RpcError) as failed:
        cook.stub.Write(request)
    assert failed.value.code() == code


def test_an_unset_election_id_may_not_write(cook) -> None:
    with pytest.raises(grpc.RpcError) as failed:
        cook.stub.Write(p4runtime_pb2.WriteRequest(device_id=3))
    assert failed.value.code() == grpc.StatusCode.PERMISSION_DENIED


def test_without_a_pipeline_nothing_is_written_or_read(primary) -> None:
    for call in (lambda: primary.stub.Write(primary.request()), lambda: primary.read(counter_entry={})):
        with pytest.raises(grpc.RpcError) as failed:
            call()
        assert failed.value.code() == grpc.StatusCode.FAILED_PRECONDITION
