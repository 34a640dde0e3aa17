"""Wait for `docker compose` to end a container."""

from __future__ import annotations

import signal
import threading


def stay_until_stopped() -> None:
    """Returns at SIGTERM or SIGINT. To be called in the main thread."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    stopped.wait()
