"""A star: hosts around one switch, every node in a network namespace of its own.

Data goes over links h<rank>-eth0 -- s1-eth<rank + 1>; the port of the switch is the number in its name. The
controller runs in the switch's namespace, as on a switch's own processor, and hosts reach it over a link each
for management. No interface and no address of the machine is touched, and a namespace takes its interfaces,
qdiscs and nftables rules along when it goes.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from switchreduce.errors import SwitchReduceError
from switchreduce.sim.mininet.namespaces import disable_ipv6, disable_offloads, in_namespace

if TYPE_CHECKING:
    from mininet.link import TCIntf
    from mininet.node import Node

AGGREGATION_ADDRESS = "10.0.0.254"
MANAGEMENT_ADDRESS = "10.0.1.254"  # of the controller
PREFIX_BITS = 24
MTU = 9500  # room for the jumbo build's 8,300 bytes and their headers


class Star:
    """`workers` hosts around a switch; as a context manager it is there inside the block only.

    Needs `require_mininet` first. Raises SwitchReduceError when a command for a link fails.
    """

    def __init__(self, workers: int) -> None:
        self._stack = ExitStack()
        self.hosts: list[Node] = []
        self.links: list[tuple[TCIntf, TCIntf]] = []
        """By rank: the host's end and the switch's."""
        try:
            self.switch = self._add_node("s1")
            for rank in range(workers):
                self._add_host(rank)
        except BaseException:
            self._stack.close()
            raise

    @property
    def ports(self) -> dict[int, str]:
        """Interface by port of the switch."""
        return {rank + 1: inner.name for rank, (_, inner) in enumerate(self.links)}

    def _add_node(self, name: str) -> Node:
        from mininet.node import Node

        node = Node(name)
        self._stack.callback(node.terminate)
        in_namespace(node.pid, disable_ipv6)
        run(node, "ip", "link", "set", "lo", "up")
        return node

    def _add_host(self, rank: int) -> None:
        from mininet.link import Link, TCIntf

        host = self._add_node(f"h{rank}")
        self.hosts.append(host)
        data = Link(host, self.switch, port1=0, port2=rank + 1, intf=TCIntf)
        management = Link(
            host, self.switch, port1=1, port2=1000 + rank,
            intfName1=f"h{rank}-mgmt", intfName2=f"s1-mgmt{rank}",
        )  # fmt: skip
        self.links.append((data.intf1, data.intf2))
        for end in (data.intf1, data.intf2):
            run(end.node, "ip", "link", "set", end.name, "mtu", str(MTU))
            in_namespace(end.node.pid, partial(disable_offloads, [end.name]))
        run(host, "ip", "address", "add", f"10.0.0.{rank + 1}/{PREFIX_BITS}", "dev", data.intf1.name)
        # point to point, so that all management links share one address at the switch
        own = f"10.0.1.{rank + 1}"
        inner, outer = management.intf1.name, management.intf2.name
        run(host, "ip", "address", "add", own, "peer", MANAGEMENT_ADDRESS, "dev", inner)
        run(self.switch, "ip", "address", "add", MANAGEMENT_ADDRESS, "peer", own, "dev", outer)

    def __enter__(self) -> Star:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def inside(node: Node) -> tuple[str, ...]:
    """What to put before a command for it to run at `node`, and to end with this process, even at kill -9."""
    return ("setpriv", "--pdeathsig", "TERM", "mnexec", "-a", str(node.pid))


def run(node: Node, *command: str) -> None:
    """Run a command at `node`. Raises SwitchReduceError with its last line if it fails."""
    output, errors, status = node.pexec(*command)
    if status:
        lines = (errors or output).strip().splitlines() or ["no word"]
        raise SwitchReduceError(f"{' '.join(command)}: {lines[-1]}")
