"""Which entries of the P4 program each step of a job needs, in the order that keeps the switch safe.

A plan is a sequence of stages. P4Runtime lets a switch reorder the updates of one write (specification
1.3, "Batch atomicity"), so what must come first stands in an earlier stage and is written on its own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from switchreduce.controller.entities import (
    Action,
    MulticastGroup,
    Replica,
    SwitchEntity,
    TableEntry,
    Update,
)
from switchreduce.controller.slots import Lease

Stages = tuple[tuple[Update, ...], ...]


@dataclass(frozen=True)
class Location:
    """Where a rank's datagrams come from, as the switch sees it."""

    port: int  # of the switch
    mac: int  # 48 bits
    address: int  # IPv4, 32 bits
    udp_port: int


def opening(lease: Lease, generation: int) -> Stages:
    """Lets hellos of a forming job through to the controller."""
    return (_inserts([_forming(lease, generation)]),)


def admission(lease: Lease, generation: int, locations: Sequence[Location]) -> Stages:
    """Admits a job's ranks, the last thing being their contributions.

    A result that completed before its group and endpoints exist would be lost, hence the order.
    """
    return (
        _inserts(_endpoints(lease, locations)),
        _inserts([_group(lease, locations)]),
        _inserts(_members(lease, generation, locations)) + _deletes([_forming(lease, generation)]),
    )


def closing(lease: Lease, generation: int, locations: Sequence[Location] | None, opened: bool) -> Stages:
    """Takes out what `opening` (if `opened`) and `admission` (if there are `locations`) put in.

    Contributions stop first: from then on nothing can reach the slots, the group or the endpoints.
    """
    first = [_forming(lease, generation)] if opened else []
    if locations is None:
        return (_deletes(first),)
    return (
        _deletes(first + _members(lease, generation, locations)),
        _deletes([_group(lease, locations)]),
        _deletes(_endpoints(lease, locations)),
    )


@dataclass(frozen=True)
class Host:
    """A host that the switch forwards to and answers ARP for."""

    address: int
    port: int
    mac: int


def local(aggregation_address: int, switch_mac: int) -> Stages:
    """What the switch itself answers to."""
    return (
        _inserts(
            [
                TableEntry("SwitchIngress.local_addresses", {"address": aggregation_address}),
                _neighbour(aggregation_address, switch_mac),
            ]
        ),
    )


def host(new: Host, old: Host | None, switch_mac: int) -> Stages:
    """Forwards to a host behind `new.port`, answering ARP for it in the way of a router (RFC 1027)."""
    route = TableEntry(
        "SwitchIngress.forward.routes",
        {"destination": (new.address, 32)},
        "SwitchIngress.forward.forward",
        {"port": new.port, "source_mac": switch_mac, "destination_mac": new.mac},
    )
    if old is not None:
        return ((Update(Action.MODIFY, route),),)
    return (_inserts([route, _neighbour(new.address, switch_mac)]),)


def _neighbour(address: int, mac: int) -> TableEntry:
    return TableEntry(
        "SwitchIngress.arp.neighbours", {"address": address}, "SwitchIngress.arp.reply", {"mac": mac}
    )


def _forming(lease: Lease, generation: int) -> TableEntry:
    return TableEntry(
        "SwitchIngress.hello.forming_jobs",
        {"job": lease.job_id, "generation": generation},
        "SwitchIngress.hello.punt",
    )


def _endpoints(lease: Lease, locations: Sequence[Location]) -> list[SwitchEntity]:
    return [
        TableEntry(
            "SwitchEgress.endpoints",
            {"endpoint": endpoint},
            "SwitchEgress.send_to",
            {"mac": where.mac, "address": where.address, "udp_port": where.udp_port, "rank": rank},
        )
        for rank, (endpoint, where) in enumerate(zip(lease.endpoints, locations, strict=True))
    ]


def _group(lease: Lease, locations: Sequence[Location]) -> MulticastGroup:
    replicas = zip(lease.endpoints, locations, strict=True)
    return MulticastGroup(
        lease.group, tuple(Replica(port=where.port, instance=endpoint) for endpoint, where in replicas)
    )


def _members(lease: Lease, generation: int, locations: Sequence[Location]) -> list[SwitchEntity]:
    return [
        TableEntry(
            "SwitchIngress.admission.members",
            {
                "job": lease.job_id,
                "generation": generation,
                "rank": rank,
                "source_address": where.address,
                "source_port": where.udp_port,
            },
            "SwitchIngress.admission.admit",
            {
                "rank_bit": 1 << rank,
                "full_mask": (1 << len(locations)) - 1,
                "slot_base": lease.slots.start,
                "slot_count": len(lease.slots),
                "group": lease.group,
                "endpoint": endpoint,
                "port": where.port,
            },
        )
        for rank, (endpoint, where) in enumerate(zip(lease.endpoints, locations, strict=True))
    ]


def _inserts(entities: Iterable[SwitchEntity]) -> tuple[Update, ...]:
    return tuple(Update(Action.INSERT, entity) for entity in entities)


def _deletes(entities: Iterable[SwitchEntity]) -> tuple[Update, ...]:
    return tuple(Update(Action.DELETE, entity) for entity in entities)
