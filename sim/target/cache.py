"""Compiled programs on disk: a generated module under a name that says what it was made from.

numba keeps machine code next to a module's file, so the file must be a real one and must stay. Its name holds
a hash of the program, of the generator's own sources and of the versions that compile it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numba
import numpy as np

Progress = Callable[[str], None]


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/switchreduce, or ~/.cache/switchreduce."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "switchreduce"


def generator_digest() -> str:
    """Changes whenever anything that shapes or runs the generated code does."""
    h = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        h.update(path.read_bytes())
    h.update(f"{numba.__version__} {np.__version__} {sys.version}".encode())
    return h.hexdigest()


def compiled(source: str, program_digest: str, progress: Progress | None) -> ModuleType:
    """The generated module, compiled; from the cache where a former run left it there."""
    name = "program_" + hashlib.sha256((program_digest + generator_digest()).encode()).hexdigest()[:24]
    folder = _usable_folder(progress)
    path = folder / f"{name}.py"
    known = path.exists() and any(folder.glob(f"__pycache__/{name}*.nbi"))
    if not path.exists() or path.read_text() != source:
        _write(path, source)
    if progress and not known:
        progress("compiling the P4 program for this machine (once; kept for later runs)")
    started = time.perf_counter()
    module = _import(name, path)
    if progress and not known:
        progress(f"compiled the P4 program in {time.perf_counter() - started:.1f} s")
    return module


def _usable_folder(progress: Progress | None) -> Path:
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        return folder
    except OSError as fault:
        if progress:
            progress(
                f"cannot keep compiled programs in {folder} ({fault.strerror}): each start compiles anew"
            )
        return Path(tempfile.mkdtemp(prefix="switchreduce-"))


def _write(path: Path, source: str) -> None:
    """In one step, so that a process that starts at the same moment sees the whole file or none."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(handle, "w") as f:
        f.write(source)
    os.replace(temporary, path)


def _import(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # numba looks functions up by their module's name
    spec.loader.exec_module(module)
    return module
