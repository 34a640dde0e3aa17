"""A word to a person who waits."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SILENCE = 2.0  # seconds after which silence looks like a fault


@contextmanager
def patience(text: str) -> Iterator[None]:
    """Print `text` on stderr if the block takes longer than SILENCE."""
    timer = threading.Timer(SILENCE, lambda: print(text, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
