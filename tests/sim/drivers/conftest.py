"""A switch that sends every frame back, on the port drivers that a test asks for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from switchreduce.sim.drivers import DataPlane, PortCapture, PortDriver
from switchreduce.sim.target import Switch, load_program

PROGRAMS = Path(__file__).parent.parent / "p4runtime" / "programs"


@pytest.fixture(scope="session")
def reflecting_switch() -> Switch:
    return Switch(load_program(PROGRAMS / "reflect.json"))


@pytest.fixture
def run_dataplane(reflecting_switch: Switch) -> Iterator[Callable[..., DataPlane]]:
    """Runs a data plane on the given drivers until the test ends."""
    stop = threading.Event()
    running: list[tuple[DataPlane, threading.Thread]] = []

    def run(*drivers: PortDriver, program: bool = True, capture: PortCapture | None = None) -> DataPlane:
        dataplane = DataPlane(drivers, capture=capture)
        if program:
            dataplane.install(reflecting_switch)
        carrier = threading.Thread(target=dataplane.run, args=(stop,))
        carrier.start()
        running.append((dataplane, carrier))
        return dataplane

    yield run
    stop.set()
    for dataplane, carrier in running:
        carrier.join(timeout=5)
        assert not carrier.is_alive(), "the data plane does not stop"
        dataplane.close()
