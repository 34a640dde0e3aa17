"""Test programs, each compiled once a session (and kept on disk between sessions)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from switchreduce.sim.target import Switch, load_program

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="session")
def switch_of() -> Callable[[str], Switch]:
    """The switch that runs a program of `programs/`; tests share it, so each clears what it set."""

    @cache
    def make(name: str) -> Switch:
        return Switch(load_program(PROGRAMS / f"{name}.json"))

    return make
