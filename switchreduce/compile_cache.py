"""A place for numba's machine code where there would be none."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path


def give_numba_a_place() -> None:
    """Set NUMBA_CACHE_DIR to a temporary folder if neither this package's folder nor the user's cache can be
    written, as in a container with a read-only file system.

    numba refuses to import functions that are to be cached and cannot be. The folder lasts as long as this
    process and serves the processes that it starts.
    """
    if os.environ.get("NUMBA_CACHE_DIR"):
        return
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "numba")
    if _is_writable(Path(__file__).parent) or _is_writable(user_cache):
        return
    try:
        folder = tempfile.mkdtemp(prefix="switchreduce-numba-")
    except OSError:
        return  # numba will say what it misses
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["NUMBA_CACHE_DIR"] = folder
    if "numba" in sys.modules:  # it has read its environment already
        sys.modules["numba"].config.CACHE_DIR = folder


def _is_writable(folder: Path) -> bool:
    """By trying, as permissions say nothing about read-only mounts."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
