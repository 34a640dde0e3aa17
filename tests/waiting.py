"""Waiting for what another thread or process does."""

import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Fails unless `condition` comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)
