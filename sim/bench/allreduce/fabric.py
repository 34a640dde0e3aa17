"""Where the ranks of a measurement run, with a switch and a controller for them.

On loopback, or each in a network namespace of its own. There, every rank has one link, shaped at both ends,
to a Linux bridge, and both contenders use that same link: Gloo's ranks reach each other through the bridge,
as through any Ethernet switch, and switchreduce's reach the embedded switch at the bridge's own address. Gloo
is not sent through the embedded switch, which would bound it, and neither has links of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from switchreduce import defaults
from switchreduce.p4.builds import constants
from switchreduce.sim.bench.cluster import START_TIMEOUT
from switchreduce.sim.mininet.impairment import Impairment, impair
from switchreduce.sim.mininet.namespaces import enable_offloads, in_namespace
from switchreduce.sim.mininet.topology import (
    AGGREGATION_ADDRESS,
    MANAGEMENT_ADDRESS,
    PREFIX_BITS,
    Star,
    inside,
    run,
)
from switchreduce.sim.processes import SWITCHREDUCE, Process

BRIDGE = "bridge"
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Fabric:
    """A running switch and controller, and where rank processes go."""

    controller: str  # HOST:PORT where ranks join
    switch: Process
    places: tuple[tuple[str, ...], ...]  # by rank, what to put before its command
    interfaces: tuple[str, ...]  # by rank, for Gloo


@contextmanager
def loopback(ranks: int, build: str) -> Iterator[Fabric]:
    """Needs no rights. Raises SwitchReduceError."""
    with ExitStack() as stack:
        switch, controller = _start(stack, (), LOOPBACK, LOOPBACK, build)
        yield Fabric(controller, switch, ((),) * ranks, ("lo",) * ranks)


@contextmanager
def namespaces(ranks: int, build: str, megabits: float) -> Iterator[Fabric]:
    """Links of ``megabits`` Mbit/s each way. Needs root and `require_mininet`. Raises SwitchReduceError."""
    with ExitStack() as stack:
        star = stack.enter_context(Star(ranks))
        _bridge(star)
        impair(star, Impairment(bandwidth=megabits))
        place = inside(star.switch)
        switch, controller = _start(stack, place, AGGREGATION_ADDRESS, MANAGEMENT_ADDRESS, build)
        places = tuple(inside(host) for host in star.hosts)
        yield Fabric(controller, switch, places, tuple(outer.name for outer, _ in star.links))


def _bridge(star: Star) -> None:
    """Connect the star's links in the switch's namespace by a Linux bridge, and let senders hand over
    segments of up to 64 KiB, as cards do (TBF cuts them up before the link)."""
    run(star.switch, "ip", "link", "add", BRIDGE, "type", "bridge")
    for outer, inner in star.links:
        for end in (outer, inner):
            in_namespace(end.node.pid, partial(enable_offloads, [end.name]))
        run(star.switch, "ip", "link", "set", inner.name, "master", BRIDGE)
    run(star.switch, "ip", "address", "add", f"{AGGREGATION_ADDRESS}/{PREFIX_BITS}", "dev", BRIDGE)
    run(star.switch, "ip", "link", "set", BRIDGE, "up")


def _start(
    stack: ExitStack, place: tuple[str, ...], data_host: str, control_host: str, build: str
) -> tuple[Process, str]:
    """(the embedded switch, where its controller listens), at ``place``."""
    program = (*place, *SWITCHREDUCE)
    aggregation = f"{defaults.AGGREGATION_ADDRESS}:{constants.AGGREGATION_PORT}"
    switch = stack.enter_context(
        Process(
            "switch", "switch", "--no-p4", "--cpu-port", str(constants.CPU_PORT),
            "--grpc-server-addr", f"{LOOPBACK}:0", "--udp", f"{data_host}:0@{aggregation}",
            program=program,
        )
    )  # fmt: skip
    p4runtime, data = switch.wait_for(r"P4Runtime on (\S+), data on udp (\S+)", START_TIMEOUT).groups()
    controller = stack.enter_context(
        Process(
            "controller", "controller", "--listen", f"{control_host}:0", "--switch", p4runtime,
            "--data-address", data, "--build", build, program=program,
        )
    )  # fmt: skip
    return switch, controller.wait_for(r"workers join at (\S+?),? ", START_TIMEOUT).group(1)
