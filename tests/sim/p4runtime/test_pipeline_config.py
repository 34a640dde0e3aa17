"""SetForwardingPipelineConfig and GetForwardingPipelineConfig."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import grpc
import pytest
from p4.v1 import p4runtime_pb2
from scapy.all import IP, UDP, Ether

Get = p4runtime_pb2.GetForwardingPipelineConfigRequest
Config = p4runtime_pb2.ForwardingPipelineConfig
MAC = bytes.fromhex("020000000001")


def get_config(controller, response_type: str = "ALL") -> Config | None:
    response = controller.stub.GetForwardingPipelineConfig(Get(device_id=3, response_type=response_type))
    return response.config if response.HasField("config") else None


def refused(call: Callable[[], None]) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value.code()


def is_reflected(switch) -> bool:
    """Whether the data plane runs the program that sends everything back."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.connect(switch.udp.address)
        peer.settimeout(1)
        peer.send(b"back?")
        try:
            return peer.recv(100) == b"back?"
        except TimeoutError:
            return False


def test_before_the_first_configuration_there_is_none(primary) -> None:
    assert get_config(primary) is None


def test_each_response_type(cook, kitchen) -> None:
    config = kitchen.config(cookie=7)
    assert get_config(cook) == config
    assert get_config(cook, "COOKIE_ONLY") == Config(cookie=config.cookie)
    assert get_config(cook, "P4INFO_AND_COOKIE") == Config(cookie=config.cookie, p4info=config.p4info)
    assert get_config(cook, "DEVICE_CONFIG_AND_COOKIE") == Config(
        cookie=config.cookie, p4_device_config=config.p4_device_config
    )
    cook.set_config(kitchen.config())
    assert get_config(cook, "COOKIE_ONLY") == Config()


def test_verify_changes_nothing(switch, primary, kitchen, reflect) -> None:
    primary.set_config(reflect.config(), "VERIFY")
    assert get_config(primary) is None
    primary.set_config(kitchen.config())
    primary.set_config(reflect.config(), "VERIFY")
    assert get_config(primary) == kitchen.config()


def test_a_commit_clears_tables_counters_groups_and_sessions(cook, kitchen) -> None:
    write_some_state(cook, kitchen)
    cook.set_config(kitchen.config())
    assert cook.read(table_entry={"table_id": kitchen.ids["l2"]}) == []
    assert cook.read(packet_replication_engine_entry={"multicast_group_entry": {}}) == []
    assert {each.counter_entry.data.packet_count for each in cook.read(counter_entry={})} == {0}


def test_a_saved_configuration_is_written_to_before_it_runs(switch, primary, kitchen, reflect) -> None:
    primary.set_config(reflect.config())
    assert is_reflected(switch)
    primary.set_config(kitchen.config(), "VERIFY_AND_SAVE")
    assert get_config(primary) == kitchen.config()
    # Writes are for the saved program ...
    entry = kitchen.entry("l2", bytes.fromhex("02000000ffff"), "forward", 1)
    primary.write("INSERT", table_entry=entry)
    # ... while the old one still runs.
    assert is_reflected(switch)
    primary.set_config(None, "COMMIT")
    assert [each.table_entry for each in primary.read(table_entry={"table_id": entry.table_id})] == [entry]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.connect(switch.udp.address)
        peer.send(b"counted by the kitchen program")
        for _ in range(500):
            if any(each.counter_entry.data.packet_count for each in primary.read(counter_entry={})):
                break
        else:
            pytest.fail("the committed program sees no packet")


def test_commit_needs_a_saved_configuration_and_takes_none(cook, kitchen) -> None:
    assert refused(lambda: cook.set_config(None, "COMMIT")) == grpc.StatusCode.NOT_FOUND
    cook.set_config(kitchen.config(), "VERIFY_AND_SAVE")
    assert refused(lambda: cook.set_config(kitchen.config(), "COMMIT")) == grpc.StatusCode.INVALID_ARGUMENT
    cook.set_config(None, "COMMIT")
    assert refused(lambda: cook.set_config(None, "COMMIT")) == grpc.StatusCode.NOT_FOUND


def write_some_state(cook, kitchen) -> None:
    route = kitchen.entry("routes", {}, "rewrite_and_forward", 3, 99, metadata=b"mine")
    route.counter_data.packet_count = 12
    route.match.add(field_id=1, lpm={"value": b"\x0a\0\0\0", "prefix_len": 8})
    cook.write("INSERT", table_entry=kitchen.entry("l2", MAC, "forward", 1, controller_metadata=5))
    cook.write("INSERT", table_entry=route)
    cook.write("INSERT", table_entry=kitchen.entry("acl", {4: b"\1"}, "drop", priority=8))
    cook.write("MODIFY", table_entry=kitchen.entry("l2", {}, "multicast", 5, is_default_action=True))
    cell = {"counter_id": kitchen.ids["by_port"], "index": {"index": 2}, "data": {"packet_count": 4}}
    cook.write("MODIFY", counter_entry=cell)
    for entry in (
        {"multicast_group_entry": {"multicast_group_id": 5, "replicas": [{"egress_port": 1}]}},
        {"clone_session_entry": {"session_id": 6, "packet_length_bytes": 64}},
    ):
        cook.write("INSERT", packet_replication_engine_entry=entry)


def all_state(controller) -> list[p4runtime_pb2.Entity]:
    replication = [{"multicast_group_entry": {}}, {"clone_session_entry": {}}]
    return [
        *controller.read(table_entry={"counter_data": {}}),
        *controller.read(table_entry={"is_default_action": True}),
        *controller.read(counter_entry={}),
        *(entity for each in replication for entity in controller.read(packet_replication_engine_entry=each)),
    ]


def test_reconcile_with_the_same_program_keeps_everything(cook, kitchen) -> None:
    write_some_state(cook, kitchen)
    before = all_state(cook)
    cook.set_config(kitchen.config(cookie=8), "RECONCILE_AND_COMMIT")
    assert all_state(cook) == before
    assert get_config(cook, "COOKIE_ONLY").cookie.cookie == 8


def renumbered(config: Config) -> Config:
    """The configuration as if the compiler had chosen other ids."""
    changed = Config()
    changed.CopyFrom(config)
    p4info = changed.p4info
    for listed in (p4info.tables, p4info.actions, p4info.counters, p4info.direct_counters, p4info.registers):
        for part in listed:
            part.preamble.id += 1000
    for counter in p4info.direct_counters:
        counter.direct_table_id += 1000
    for table in p4info.tables:
        table.const_default_action_id += 1000 if table.const_default_action_id else 0
        table.direct_resource_ids[:] = [each + 1000 for each in table.direct_resource_ids]
        for ref in table.action_refs:
            ref.id += 1000
        for match in table.match_fields:
            match.id += 10
    for action in p4info.actions:
        for param in action.params:
            param.id += 10
    return changed


def renumbered_entity(entity: p4runtime_pb2.Entity) -> p4runtime_pb2.Entity:
    """The entity as a controller writes it to the renumbered configuration."""
    changed = p4runtime_pb2.Entity()
    changed.CopyFrom(entity)
    if changed.HasField("counter_entry"):
        changed.counter_entry.counter_id += 1000
    if changed.HasField("table_entry"):
        entry = changed.table_entry
        entry.table_id += 1000
        for match in entry.match:
            match.field_id += 10
        entry.action.action.action_id += 1000
        for param in entry.action.action.params:
            param.param_id += 10
    return changed


def test_reconcile_with_other_ids_keeps_everything_by_name(cook, kitchen) -> None:
    write_some_state(cook, kitchen)
    before = all_state(cook)
    cook.set_config(renumbered(kitchen.config()), "RECONCILE_AND_COMMIT")
    assert all_state(cook) == [renumbered_entity(each) for each in before]


def test_reconcile_refuses_to_lose_state(cook, kitchen, reflect) -> None:
    write_some_state(cook, kitchen)
    before = all_state(cook)
    call = lambda: cook.set_config(reflect.config(), "RECONCILE_AND_COMMIT")  # noqa: E731
    assert refused(call) == grpc.StatusCode.INVALID_ARGUMENT
    assert all_state(cook) == before
    assert get_config(cook) == kitchen.config(cookie=7)


def test_reconcile_may_be_the_first_configuration(primary, kitchen) -> None:
    primary.set_config(kitchen.config(), "RECONCILE_AND_COMMIT")
    assert get_config(primary) == kitchen.config()


def test_what_no_action_takes(primary, kitchen, reflect) -> None:
    def config(**changes: object) -> Config:
        changed = kitchen.config()
        changed.MergeFrom(Config(**changes))
        return changed

    invalid, unimplemented = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED
    no_p4info = Config(p4_device_config=kitchen.device_config)
    other_size = kitchen.config()
    other_size.p4info.counters[0].size = 17
    other_param = kitchen.config()
    next(a for a in other_param.p4info.actions if a.preamble.alias == "forward").params[0].bitwidth = 16
    other_key = kitchen.config()
    other_key.p4info.tables[0].match_fields[0].match_type = 3  # TERNARY
    missing_action = kitchen.config()
    del missing_action.p4info.actions[:]
    metered = kitchen.config()
    metered.p4info.meters.add(preamble={"id": 5, "name": "m"})
    cases = [
        (None, invalid),
        (no_p4info, invalid),
        (Config(p4info=kitchen.p4info), invalid),
        (Config(p4info=kitchen.p4info, p4_device_config=b"not JSON"), invalid),
        (Config(p4info=kitchen.p4info, p4_device_config=b"{}"), invalid),
        (Config(p4info=kitchen.p4info, p4_device_config=b"[1]"), invalid),
        (Config(p4info=kitchen.p4info, p4_device_config=reflect.device_config), invalid),
        (Config(p4info=kitchen.p4info, p4_device_config=kitchen.device_config[:-100]), invalid),
        (other_size, invalid),
        (other_param, invalid),
        (other_key, invalid),
        (missing_action, invalid),
        (metered, unimplemented),
    ]
    for number, (bad, code) in enumerate(cases):
        for action in ("VERIFY", "VERIFY_AND_COMMIT"):
            assert refused(lambda: primary.set_config(bad, action)) == code, (number, action)  # noqa: B023
    assert refused(lambda: primary.set_config(kitchen.config(), "UNSPECIFIED")) == invalid
    assert get_config(primary) is None


def test_other_calls_go_on_while_a_program_compiles(switch, connect: Callable, kitchen, monkeypatch) -> None:
    """The compilation is held up here, so that the test does not depend on how long it takes."""
    from switchreduce.sim.p4runtime import device

    compiling, go_on = threading.Event(), threading.Event()
    real_switch = device.Switch

    def slow_switch(*args: object, **options: object) -> object:
        compiling.set()
        assert go_on.wait(10)
        return real_switch(*args, **options)

    monkeypatch.setattr(device, "Switch", slow_switch)
    first = connect(1)
    outcome: list[grpc.StatusCode] = []
    configure = lambda: first.set_config(kitchen.config())  # noqa: E731
    setter = threading.Thread(target=lambda: outcome.append(refused(configure)))
    setter.start()
    assert compiling.wait(10)
    assert first.client.api_version()
    assert get_config(first) is None
    second = connect(2)  # becomes the primary meanwhile
    go_on.set()
    setter.join(10)
    # Who is not the primary any more may not put its program to work.
    assert outcome == [grpc.StatusCode.PERMISSION_DENIED]
    assert get_config(second) is None
    second.set_config(kitchen.config())
    assert get_config(second) == kitchen.config()


def test_counters_count_packets(switch, cook, kitchen) -> None:
    entry = kitchen.entry("routes", {}, "drop")
    entry.match.add(field_id=1, lpm={"value": b"\x7f\0\0\0", "prefix_len": 8})
    cook.write("INSERT", table_entry=entry)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.connect(switch.udp.address)
        for _ in range(3):
            peer.send(b"count me")
        size = len(Ether() / IP() / UDP() / b"count me")
        for _ in range(500):
            (direct,) = cook.read(direct_counter_entry={})
            if direct.direct_counter_entry.data.packet_count == 3:
                break
        assert direct.direct_counter_entry.data.packet_count == 3
        assert direct.direct_counter_entry.data.byte_count == 3 * size
    cells = [each.counter_entry for each in cook.read(counter_entry={})]
    assert [(each.data.packet_count, each.data.byte_count) for each in cells if each.index.index == 1] == [
        (3, 3 * size)
    ]
