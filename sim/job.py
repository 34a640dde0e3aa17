"""A job of simulated ranks on an embedded switch, in virtual time."""

from __future__ import annotations

import itertools
import secrets
from ipaddress import IPv4Address

from switchreduce.controller.entries import Location, admission, closing, local
from switchreduce.controller.slots import Lease
from switchreduce.p4.builds import Build
from switchreduce.sim.apply import apply
from switchreduce.sim.network import Endpoint, VirtualNetwork
from switchreduce.sim.target import Switch
from switchreduce.worker.transport.engine import Session, SlotEngine

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
