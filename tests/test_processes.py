"""Waiting for a process that says nothing, ends at once, or ends later."""

from __future__ import annotations

import time

import pytest

from switchreduce.errors import SwitchReduceError
from switchreduce.sim.processes import Process


@pytest.mark.parametrize("attempt", range(5))
def test_a_process_that_ends_is_noticed_at_once(attempt):
    with Process("worker", "worker", "allreduce", "--job", "x") as process:  # arguments are missing
        started = time.monotonic()
        with pytest.raises(SwitchReduceError, match=r"worker stopped: .*required"):
            process.wait_for("never said", 60)
        assert time.monotonic() - started < 30
        assert process.wait(10) == 2


def test_a_process_that_is_slow_is_not_waited_for_longer_than_asked():
    with (
        Process("controller", "controller", "--switch", "127.0.0.1:1", "--listen", "127.0.0.1:0") as process,
        pytest.raises(SwitchReduceError, match="not ready within 1 s"),
    ):
        process.wait_for("never said", 1)


def test_a_process_in_vain_is_not_waited_for():
    """What it needs has ended."""
    with (
        Process("switch", "-c", "echo no such library; exit 127", program=("sh",)) as switch,
        Process("controller", "controller", "--switch", "127.0.0.1:1", "--listen", "127.0.0.1:0") as process,
        pytest.raises(SwitchReduceError, match="switch stopped: no such library"),
    ):
        process.wait_for("never said", 60, needed=switch)
