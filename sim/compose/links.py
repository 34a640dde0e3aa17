"""Turn a container's interfaces on the data networks into links of the switch, before anything uses them.

Docker gives each of them an address, a name that depends on the order in which networks were joined, and
offloads that would hand a switch frames of 64 KiB without checksums. Needs CAP_NET_ADMIN in the container.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv4Network

from switchreduce.errors import SwitchReduceError, UsageError
from switchreduce.sim.compose.stop import stay_until_stopped
from switchreduce.sim.mininet.impairment import LOSS_UNITS, NFTABLES_RULES, Impairment
from switchreduce.sim.mininet.namespaces import disable_offloads

PORT_NAME = "port{number}"


@dataclass(frozen=True)
class Link:
    """This container's end of a data network."""

    interface: str
    address: IPv4Interface


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="links", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--within", required=True, type=IPv4Network, metavar="NETWORK",
        help="what all data networks are part of, like 10.83.0.0/20; other interfaces stay as they are",
    )  # fmt: skip
    ends = parser.add_subparsers(dest="end", metavar="END", required=True)
    switch = ends.add_parser(
        "switch", help="name the interfaces port1, port2, ... and keep them until stopped"
    )
    switch.add_argument("--ports", required=True, type=int, metavar="N", help="how many there must be")
    worker = ends.add_parser("worker", help="make the switch the way to everywhere")
    worker.add_argument(
        "--loss", default="0", metavar="PCT", help="percent of packets lost, each way (default: %(default)s)"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        links = find_links(read_addresses(), options.within)
        if options.end == "switch":
            become_ports(links, options.ports)
            print(f"links: {options.ports} ports of a switch are ready", flush=True)
            stay_until_stopped()
        else:
            loss = parse_loss(options.loss)
            become_uplink(links)
            lose(links[0].interface, loss)
    except (SwitchReduceError, OSError) as error:
        print(f"links: error: {error}", file=sys.stderr)
        return 1
    return 0


def find_links(addresses: Sequence[Link], within: IPv4Network) -> list[Link]:
    """Those that are part of `within`, by address: so in the order of the networks, whatever their names."""
    return sorted((link for link in addresses if link.address.ip in within), key=lambda link: link.address)


def parse_loss(text: str) -> float:
    """Percent. Raises UsageError."""
    try:
        return Impairment(loss=float(text)).loss
    except (ValueError, UsageError):
        raise UsageError(f"LOSS={text}: percent, from 0 to below 100") from None


def read_addresses() -> list[Link]:
    """Every IPv4 address of this network namespace."""
    return [
        Link(interface["ifname"], IPv4Interface(f"{address['local']}/{address['prefixlen']}"))
        for interface in json.loads(run("ip", "-json", "-4", "address"))
        for address in interface.get("addr_info", ())
    ]


def become_ports(links: Sequence[Link], count: int) -> None:
    """Make `links` bare ports, named by their number: no address, so no host answers or listens there.

    Raises UsageError if there are not `count`.
    """
    if len(links) != count:
        raise UsageError(f"there are {len(links)} data networks, and {count} ports were asked for")
    disable_offloads(link.interface for link in links)
    for number, link in enumerate(links, start=1):
        run("ip", "address", "flush", "dev", link.interface)
        run("ip", "link", "set", link.interface, "down")
        run("ip", "link", "set", link.interface, "name", PORT_NAME.format(number=number))
        run("ip", "link", "set", PORT_NAME.format(number=number), "up")


def become_uplink(links: Sequence[Link]) -> None:
    """Send everything that is not for a network of this container's to the switch, which answers ARP for
    itself and for the hosts behind it. Raises UsageError if there is not one link."""
    if len(links) != 1:
        raise UsageError(f"a worker has one data network, and here are {len(links)}")
    disable_offloads([links[0].interface])
    run("ip", "route", "replace", "default", "dev", links[0].interface)


def lose(interface: str, percent: float) -> None:
    """Lose packets in both directions."""
    if percent:
        lost = round(percent / 100 * LOSS_UNITS)
        run("nft", NFTABLES_RULES.format(interface=interface, units=LOSS_UNITS, lost=lost))


def run(*command: str) -> str:
    """Its output. Raises SwitchReduceError with its first complaint if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        complaint = (done.stderr or done.stdout).strip().splitlines() or ["no word"]
        raise SwitchReduceError(f"{' '.join(command[:4])}: {complaint[0]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
