"""Hosts that are given and hosts that are learned."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest

from switchreduce.controller.entities import Action
from switchreduce.controller.entries import Host, Location
from switchreduce.controller.hosts import HostTable, parse_host

SWITCH = int(IPv4Address("10.0.0.254"))
GIVEN = Host(int(IPv4Address("10.0.0.7")), 3, 7)


def at(address: str, port: int = 1, mac: int = 1) -> Location:
    return Location(port=port, mac=mac, address=int(IPv4Address(address)), udp_port=5)


def actions(stages):
    return [(update.action, update.entity.table) for stage in stages for update in stage]


@pytest.fixture
def table():
    return HostTable([GIVEN], SWITCH, 0xFE, capacity=4)


def test_a_fresh_switch_gets_its_own_address_and_the_given_hosts(table):
    addresses = [update.entity.match.get("address") for stage in table.base() for update in stage]
    assert addresses == [SWITCH, SWITCH, None, GIVEN.address]


def test_a_host_is_learned_once_and_moved_when_it_moves(table):
    learned = actions(table.learn(at("10.0.0.1")))
    assert learned == [
        (Action.INSERT, "SwitchIngress.forward.routes"),
        (Action.INSERT, "SwitchIngress.arp.neighbours"),
    ]
    assert table.learn(at("10.0.0.1")) == ()
    assert actions(table.learn(at("10.0.0.1", port=2))) == [(Action.MODIFY, "SwitchIngress.forward.routes")]


@pytest.mark.parametrize("address", ["10.0.0.254", "10.0.0.7", "127.0.0.1"])
def test_some_addresses_are_not_learned(table, address):
    assert table.learn(at(address)) == ()


def test_learning_stops_when_the_tables_are_full(table):
    assert table.learn(at("10.0.0.1"))
    assert table.learn(at("10.0.0.2"))
    assert table.learn(at("10.0.0.3")) == ()
    assert table.learn(at("10.0.0.2", port=9))


def test_a_switch_that_starts_afresh_is_taught_again(table):
    table.learn(at("10.0.0.1"))
    table.base()
    assert len(actions(table.learn(at("10.0.0.1")))) == 2


def test_a_host_in_words():
    assert parse_host("10.0.0.7=3,00:00:00:00:00:07") == GIVEN


@pytest.mark.parametrize("text", ["10.0.0.7", "10.0.0=3,02:00:00:00:00:07", "10.0.0.7=512,02:00:00:00:00:07"])
def test_what_is_no_host_is_refused(text):
    with pytest.raises(ValueError, match=r"10\.0\.0"):
        parse_host(text)
