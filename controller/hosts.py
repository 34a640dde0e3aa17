"""Hosts behind the switch, for which it forwards IPv4 and answers ARP."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address

from switchreduce.controller import entries
from switchreduce.controller.entities import parse_mac
from switchreduce.controller.entries import Host, Location, Stages


class HostTable:
    """Hosts given beforehand, which stay as they are, and hosts learned from ranks' hellos.

    A learned host is kept after its job, as it is still there; it changes when a later hello shows it
    elsewhere.
    """

    def __init__(
        self, given: Iterable[Host], aggregation_address: int, switch_mac: int, capacity: int
    ) -> None:  # fmt: skip
        self._given = {host.address: host for host in given}
        self._learned: dict[int, Host] = {}
        self._aggregation_address = aggregation_address
        self._switch_mac = switch_mac
        self._capacity = capacity - 1  # the switch's own address is a neighbour too

    def base(self) -> Stages:
        """What a freshly programmed switch needs; forgets what was learned."""
        self._learned.clear()
        own = entries.local(self._aggregation_address, self._switch_mac)
        given = (entries.host(host, None, self._switch_mac) for host in self._given.values())
        return own + tuple(stage for stages in given for stage in stages)

    def learn(self, where: Location) -> Stages:
        """What a hello from `where` adds, if anything."""
        host = Host(where.address, where.port, where.mac)
        known = self._learned.get(host.address)
        if (
            host == known
            or host.address in self._given
            or host.address == self._aggregation_address
            or IPv4Address(host.address).is_loopback  # no route leads there
            or (known is None and len(self._given) + len(self._learned) >= self._capacity)
        ):
            return ()
        self._learned[host.address] = host
        return entries.host(host, known, self._switch_mac)


def parse_host(text: str) -> Host:
    """A host from ``ADDRESS=PORT,MAC``.

    Raises:
        ValueError: it is something else.
    """
    address, _, rest = text.partition("=")
    port, _, mac = rest.partition(",")
    if not port.isdecimal() or int(port) >= 1 << 9:
        raise ValueError(f"{text!r} is not ADDRESS=PORT,MAC like 10.0.0.7=3,02:00:00:00:00:07")
    return Host(int(IPv4Address(address)), int(port), parse_mac(mac))
