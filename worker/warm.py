"""Compile, or load from numba's cache, every kernel that a worker runs."""

from __future__ import annotations

from functools import cache

from switchreduce.worker import codec
from switchreduce.worker.transport import engine


@cache
def warm_up() -> None:
    """Afterwards no call of this process compiles. Seconds the first time on a machine, then a fraction."""
    codec.warm_up()
    engine.warm_up()
