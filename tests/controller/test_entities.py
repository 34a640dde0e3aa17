"""Entities against the P4Info of the compiled program."""

from __future__ import annotations

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from p4.config.v1 import p4info_pb2

from switchreduce.controller import entries
from switchreduce.controller.entities import Action, MulticastGroup, Replica, Schema, TableEntry, parse_mac
from switchreduce.controller.entries import Host, Location
from switchreduce.controller.slots import Lease
from switchreduce.p4.builds import load_build

SCHEMA = Schema(text_format.Parse(load_build("wide256").p4info_path.read_text(), p4info_pb2.P4Info()))

locations = st.builds(
    Location,
    port=st.integers(0, 509),
    mac=st.integers(0, 2**48 - 1),
    address=st.integers(0, 2**32 - 1),
    udp_port=st.integers(0, 65535),
)
leases = st.builds(
    lambda job_id, group, first, base, count, world: Lease(
        job_id, group, tuple(range(first, first + world)), range(base, base + count)
    ),
    job_id=st.integers(1, 256),
    group=st.integers(1, 256),
    first=st.integers(1, 4000),
    base=st.integers(0, 900),
    count=st.integers(1, 100),
    world=st.integers(1, 9),
)


@given(leases, st.integers(1, 2**64 - 1), st.data())
def test_every_entry_of_a_job_fits_the_program_and_survives_the_wire(lease, generation, data):
    world = len(lease.endpoints)
    where = data.draw(st.lists(locations, min_size=world, max_size=world))
    plans = [entries.opening(lease, generation), entries.admission(lease, generation, where)]
    widths = {
        (table.preamble.name, key.name): key.bitwidth
        for table in SCHEMA.tables.values()
        for key in table.match_fields
    }
    for update in [update for plan in plans for stage in plan for update in stage]:
        encoded = update.encode(SCHEMA)
        assert encoded.type == update.action.value
        entity = update.entity
        if isinstance(entity, MulticastGroup):
            group = encoded.entity.packet_replication_engine_entry.multicast_group_entry
            assert [Replica(r.egress_port, r.instance) for r in group.replicas] == list(entity.replicas)
            continue
        assert TableEntry.decode(SCHEMA, encoded.entity.table_entry) == entity
        for name, value in entity.match.items():
            assert value < 1 << widths[entity.table, name]
        for param in SCHEMA.actions[entity.action].params:
            assert entity.params[param.name] < 1 << param.bitwidth


@given(leases, st.integers(1, 2**64 - 1), st.data())
def test_closing_takes_out_exactly_what_was_put_in(lease, generation, data):
    world = len(lease.endpoints)
    where = data.draw(st.lists(locations, min_size=world, max_size=world))
    held = set()
    for plan in (
        entries.opening(lease, generation),
        entries.admission(lease, generation, where),
        entries.closing(lease, generation, where, opened=False),
    ):
        for stage in plan:
            for update in stage:
                key = update.entity.key()
                assert (key in held) == (update.action is Action.DELETE)
                held ^= {key}
    assert not held


def test_host_entries_fit_the_program():
    host = Host(0x0A000007, 3, parse_mac("02:00:00:00:00:07"))
    stages = entries.local(0x0A0000FE, 1) + entries.host(host, None, 1) + entries.host(host, host, 1)
    decoded = [
        TableEntry.decode(SCHEMA, update.encode(SCHEMA).entity.table_entry)
        for stage in stages
        for update in stage
    ]
    assert decoded == [update.entity for stage in stages for update in stage]
    assert [entry.table for entry in decoded] == [
        "SwitchIngress.local_addresses",
        "SwitchIngress.arp.neighbours",
        "SwitchIngress.forward.routes",
        "SwitchIngress.arp.neighbours",
        "SwitchIngress.forward.routes",
    ]


def test_byte_strings_are_the_shortest():
    entry = TableEntry(
        "SwitchIngress.hello.forming_jobs", {"job": 0, "generation": 256}, "SwitchIngress.hello.punt"
    )
    match = entry.encode(SCHEMA).table_entry.match
    assert [part.exact.value for part in match] == [b"\0", b"\1\0"]


def test_a_default_route_matches_everything():
    entry = TableEntry(
        "SwitchIngress.forward.routes",
        {"destination": (0, 0)},
        "SwitchIngress.forward.forward",
        {"port": 1, "source_mac": 2, "destination_mac": 3},
    )
    assert not entry.encode(SCHEMA).table_entry.match


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (TableEntry("SwitchIngress.nothing", {}), "SwitchIngress.nothing"),
        (
            TableEntry("SwitchIngress.local_addresses", {"adress": 1}),
            "SwitchIngress.local_addresses has the keys",
        ),
        (
            TableEntry("SwitchIngress.local_addresses", {"address": 1}, "SwitchIngress.nothing"),
            "SwitchIngress.nothing",
        ),
    ],
)
def test_a_name_that_the_program_lacks_is_named(entry, text):
    with pytest.raises(KeyError, match=text):
        entry.encode(SCHEMA)


def test_an_entry_reads_as_one_line():
    update = entries.local(10, 1)[0][0]
    assert str(update) == "insert SwitchIngress.local_addresses {'address': 10}"


@pytest.mark.parametrize("text", ["", "02:53:52:00:00", "0253:52:00:00:01:00", "02:53:52:00:00:xx"])
def test_what_is_no_mac_address_is_refused(text):
    with pytest.raises(ValueError, match=r"MAC|base 16"):
        parse_mac(text)
