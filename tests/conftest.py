"""What several test modules need."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from switchreduce.p4.builds import load_build
from switchreduce.sim.target import Switch, load_program

settings.register_profile(
    "default", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("default")


@pytest.fixture(scope="session", params=["wide256", "narrow256", "jumbo2048"])
def any_build(request):
    """Every build of the P4 program in turn."""
    return load_build(request.param)


@pytest.fixture(scope="session")
def wide_switch() -> Switch:
    """An embedded switch with the default build; tests take a fresh generation rather than a fresh switch."""
    return Switch(load_program(load_build("wide256").json_path), cpu_port=510)
