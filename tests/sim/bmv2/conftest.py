"""How many packets, from which seed."""

from __future__ import annotations

import os

import pytest

from .bmv2 import BINARY, available


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not available():
        skip = pytest.mark.skip(reason=f"{BINARY} is not on PATH: nothing to compare with")
        for item in items:
            if "sim/bmv2" in item.nodeid:
                item.add_marker(skip)


@pytest.fixture(scope="session")
def packet_count() -> int:
    """Packets per program; 2,000 for each of a dozen take about half a minute."""
    return int(os.environ.get("SWITCHREDUCE_DIFFERENTIAL_PACKETS", "2000"))


@pytest.fixture
def seed() -> int:
    """Shown with a test that fails."""
    number = int(os.environ.get("SWITCHREDUCE_DIFFERENTIAL_SEED", "1"))
    print(f"SWITCHREDUCE_DIFFERENTIAL_SEED={number}")
    return number
