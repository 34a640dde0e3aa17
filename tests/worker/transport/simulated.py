"""A job of simulated ranks on an embedded switch, in virtual time."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from ipaddress import IPv4Address

import numpy as np
from hypothesis import strategies as st

from switchreduce.controller.entries import Location, admission, closing, local
from switchreduce.controller.slots import Lease
from switchreduce.p4.builds import Build
from switchreduce.sim.apply import apply
from switchreduce.sim.network import Direction, Endpoint, Fate, VirtualNetwork
from switchreduce.sim.target import Switch
from switchreduce.worker.transport.engine import Op, Segment, Session, SlotEngine

SWITCH_ADDRESS = "10.0.0.254"

_job_ids = itertools.count(1)


class SimulatedJob:
    """Admits `ranks` engines to the switch; `close` takes their entries out again."""

    def __init__(
        self,
        switch: Switch,
        build: Build,
        network: VirtualNetwork,
        ranks: int,
        slots: int,
        rows: int = 64,
        slot_base: int = 0,
        first_port: int = 1,
        first_chunk: int = 0,
    ) -> None:
        if not switch.tables["SwitchIngress.local_addresses"].entries():
            apply(switch, local(int(IPv4Address(SWITCH_ADDRESS)), 0x025352000001))
        number = next(_job_ids) % 200 + 1
        endpoints = [Endpoint(first_port + i, f"10.0.{number}.{i + 1}", 4000 + i) for i in range(ranks)]
        self._switch = switch
        self.generation = secrets.randbits(64) | 1
        self.lease = Lease(
            job_id=number,
            group=number,
            endpoints=tuple(number * 64 + i for i in range(ranks)),
            slots=range(slot_base, slot_base + slots),
        )
        self.locations = [
            Location(e.port, int(e.mac.replace(":", ""), 16), int(IPv4Address(e.address)), e.udp_port)
            for e in endpoints
        ]
        # no hello travels here, so the entry that lets it through is not there to be removed
        stages = admission(self.lease, self.generation, self.locations)
        apply(switch, (*stages[:-1], tuple(u for u in stages[-1] if u.action.name == "INSERT")))
        self.engines = []
        for rank, endpoint in enumerate(endpoints):
            session = Session(number, self.generation, rank, ranks, slots)
            engine = SlotEngine(session, build, rows, first_chunk)
            network.attach(endpoint, engine)
            self.engines.append(engine)

    def close(self) -> None:
        apply(self._switch, closing(self.lease, self.generation, self.locations, opened=False))


def queue_all(job: SimulatedJob, op: Op, contributions: np.ndarray) -> list[Segment]:
    """Queue rank r's contributions[r], uint32 (ranks, chunks, lanes), on its engine."""
    segments = []
    for engine, lanes in zip(job.engines, contributions, strict=True):
        segment = engine.allocate(op, lanes.shape[0])
        assert segment is not None
        segment.lanes[...] = lanes
        engine.queue(segment)
        segments.append(segment)
    return segments


def combined(op: Op, contributions: np.ndarray) -> np.ndarray:
    """What the switch must answer."""
    if op is Op.SUM:
        return contributions.sum(axis=0, dtype=np.uint32)
    if op is Op.OR:
        return np.bitwise_or.reduce(contributions, axis=0)
    return contributions.max(axis=0)


@st.composite
def network_fates(draw):
    """Loss, duplication and delay: a rate of each, and a hypothesis-driven source of the packets' luck.

    Some copies come so late that their slot has been used many times since, and some ranks stall: for a
    while nothing reaches or leaves them, then all of it at once.
    """
    loss = draw(st.sampled_from([0.0, 0.05, 0.3, 0.6]))
    duplication = draw(st.sampled_from([0.0, 0.1, 0.5]))
    spread = draw(st.sampled_from([0.0, 1e-4, 1e-2, 1.0]))
    lateness = draw(st.sampled_from([0.0, 0.0, 1e-3, 0.1, 20.0]))  # of a second copy
    stalls = draw(
        st.lists(
            st.tuples(
                st.integers(1, 5), st.sampled_from([0.0, 1e-5, 3e-5, 1e-3]), st.sampled_from([1e-3, 0.1, 5.0])
            ),
            max_size=2,
        )
    )  # switch port, start, seconds
    luck = draw(st.randoms(use_true_random=False))

    def fate(direction: Direction, port: int, now: float):
        copies = 1 + (luck.random() < duplication)
        delays = [1e-5 + luck.random() * spread for _ in range(copies) if luck.random() >= loss]
        if lateness:
            delays.append(luck.random() * lateness)
        for stalled, start, length in stalls:
            if port == stalled:
                delays = [start + length - now if start <= now + d < start + length else d for d in delays]
        return delays

    return fate


def perfect(*_: object) -> Sequence[float]:
    """A network that loses nothing and takes 10 us."""
    return (1e-5,)


def slow_queue(capacity: int, service: float, leg: float) -> Fate:
    """A switch that takes `service` s for a packet and drops what finds `capacity` packets waiting; the legs
    to and from it take `leg` s."""
    free_at = 0.0

    def fate(direction: Direction, port: int, now: float) -> Sequence[float]:
        nonlocal free_at
        if direction is Direction.TO_RANK:
            return (leg,)
        wait = max(0.0, free_at - now)
        if wait >= capacity * service:
            return ()
        free_at = now + wait + service
        return (leg + wait + service,)

    return fate


__all__ = [
    "SWITCH_ADDRESS",
    "Fate",
    "Op",
    "SimulatedJob",
    "combined",
    "network_fates",
    "perfect",
    "queue_all",
    "slow_queue",
]
