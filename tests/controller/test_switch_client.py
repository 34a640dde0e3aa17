"""The P4Runtime connection against the real switch process."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest

from switchreduce.controller import entries
from switchreduce.controller.entities import Action, MulticastGroup, Replica, TableEntry, Update
from switchreduce.controller.entries import Location
from switchreduce.controller.slots import Lease
from switchreduce.controller.switch_client import Callbacks, Superseded, SwitchConnection, WriteRefused
from switchreduce.errors import SwitchError
from tests.controller.plane import BUILD, start_switch

LEASE = Lease(job_id=7, group=3, endpoints=(11, 12), slots=range(40, 56))
WHERE = [Location(port=1, mac=1, address=0x0A000001, udp_port=5001), Location(2, 2, 0x0A000002, 5002)]


class Heard:
    """What a connection reports."""

    def __init__(self) -> None:
        self.faults: queue.Queue[SwitchError] = queue.Queue()
        self.callbacks = Callbacks(packet_in=lambda fields, payload: None, lost=self.faults.put)


@pytest.fixture(scope="module")
def switch() -> Iterator[str]:
    process, p4runtime, _ = start_switch()
    with process:
        yield p4runtime


@pytest.fixture
def connection(switch) -> Iterator[SwitchConnection]:
    made = SwitchConnection(switch, 0, BUILD, Heard().callbacks)
    made.push_pipeline()
    yield made
    made.close()


def test_a_jobs_entries_arrive_and_leave(connection):
    connection.write_stages(entries.opening(LEASE, 99))
    connection.write_stages(entries.admission(LEASE, 99, WHERE))
    admitted = connection.read_table("SwitchIngress.admission.members")
    assert [entry.packets for entry in admitted] == [0, 0]
    assert {entry.match["source_port"] for entry in admitted} == {5001, 5002}
    assert {entry.params["slot_base"] for entry in admitted} == {40}
    assert not connection.read_table("SwitchIngress.hello.forming_jobs")
    connection.write_stages(entries.closing(LEASE, 99, WHERE, opened=False))
    for table in ("SwitchIngress.admission.members", "SwitchEgress.endpoints"):
        assert not connection.read_table(table)
    connection.write_stages(entries.admission(LEASE, 99, WHERE)[1:2])  # the group is gone too


def test_a_refused_batch_names_each_update_that_failed(connection):
    connection.write_stages(entries.local(1, 2))
    again = Update(Action.INSERT, TableEntry("SwitchIngress.local_addresses", {"address": 1}))
    other = Update(Action.INSERT, TableEntry("SwitchIngress.local_addresses", {"address": 2}))
    absent = Update(Action.DELETE, MulticastGroup(9, (Replica(1, 1),)))
    with pytest.raises(WriteRefused) as refused:
        connection.write_stages(((other, again, absent),))
    text = str(refused.value)
    assert "insert SwitchIngress.local_addresses {'address': 1}: ALREADY_EXISTS" in text
    assert "delete multicast group 9: NOT_FOUND" in text
    assert "'address': 2" not in text
    assert "\n" not in text


def test_a_tolerant_write_takes_out_what_is_there(connection):
    connection.write_stages(entries.opening(LEASE, 99))
    closing = entries.closing(LEASE, 99, WHERE, opened=True)
    with pytest.raises(WriteRefused, match="NOT_FOUND"):
        connection.write_stages(closing)
    connection.write_stages(entries.opening(LEASE, 99))
    connection.write_stages(closing, tolerant=True)
    assert not connection.read_table("SwitchIngress.hello.forming_jobs")


def test_a_pushed_pipeline_has_empty_tables(connection):
    connection.write_stages(entries.opening(LEASE, 99) + entries.admission(LEASE, 99, WHERE))
    connection.push_pipeline()
    assert not connection.read_table("SwitchIngress.admission.members")
    connection.write_stages(entries.opening(LEASE, 99) + entries.admission(LEASE, 99, WHERE))


def test_drops_can_be_read(connection):
    assert set(connection.read_counter("SwitchIngress.drops").values()) == {0}


def test_a_newer_controller_is_primary_and_the_older_one_hears_so(switch):
    heard = Heard()
    older = SwitchConnection(switch, 0, BUILD, heard.callbacks)
    newer = SwitchConnection(switch, 0, BUILD, Heard().callbacks)
    fault = heard.faults.get(timeout=5)
    assert isinstance(fault, Superseded)
    assert "another controller has taken over" in str(fault)
    with pytest.raises(SwitchError, match="PERMISSION_DENIED"):
        older.push_pipeline()
    newer.push_pipeline()
    older.close()
    newer.close()


def test_another_device_is_refused_in_one_line(switch, capsys):
    with pytest.raises(SwitchError, match=rf"the switch at {switch} refuses this controller: NOT_FOUND .*5"):
        SwitchConnection(switch, 5, BUILD, Heard().callbacks)
    assert capsys.readouterr() == ("", "")


def test_closing_is_not_losing(switch):
    heard = Heard()
    SwitchConnection(switch, 0, BUILD, heard.callbacks).close()
    with pytest.raises(queue.Empty):
        heard.faults.get(timeout=0.2)
