"""Fixtures of the control plane's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.controller.plane import Plane, running_plane


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    """Shared by the tests of a module: each takes its own job name."""
    with running_plane() as plane:
        yield plane
