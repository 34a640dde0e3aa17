"""Compiled programs on disk: machine code under a name that says what it was made from.

The name holds a hash of the program, of the generator's own sources, of the version that compiles it and of
the processor; the file starts with a hash of the rest, so that a damaged one is compiled anew.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import llvmlite

from switchreduce.sim.target.emit_traffic import RUN_PARAMETERS
from switchreduce.sim.target.hashing import TABLES
from switchreduce.sim.target.intrinsics import INTRINSICS
from switchreduce.sim.target.native import Loaded, compile_to_object, processor

Progress = Callable[[str], None]

_HASH_BYTES = hashlib.sha256().digest_size


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/switchreduce, or ~/.cache/switchreduce."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "switchreduce"


def generator_digest() -> str:
    """Changes whenever anything that shapes or runs the generated code does."""
    h = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        h.update(path.read_bytes())
    h.update(f"{llvmlite.__version__} {processor()}".encode())
    return h.hexdigest()


def compiled(source: str, program_digest: str, progress: Progress | None) -> Loaded:
    """The machine code of a generated text; from the cache where a former run left it there."""
    name = "program_" + hashlib.sha256((program_digest + generator_digest()).encode()).hexdigest()[:24]
    path = cache_folder() / f"{name}.o"
    object_file = _read(path)
    if object_file is None:
        if progress:
            progress("compiling the P4 program for this machine (once; kept for later runs)")
        started = time.perf_counter()
        prelude = Path(__file__).with_name("prelude.py").read_text()
        object_file = compile_to_object([prelude, source], TABLES, INTRINSICS, "run", RUN_PARAMETERS)
        if progress:
            progress(f"compiled the P4 program in {time.perf_counter() - started:.1f} s")
        try:
            _write(path, object_file)
        except OSError as fault:
            if progress:
                reason = f"cannot keep compiled programs in {path.parent} ({fault.strerror})"
                progress(f"{reason}: each start compiles anew")
    return Loaded(object_file)


def _read(path: Path) -> bytes | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    object_file = content[_HASH_BYTES:]
    return object_file if hashlib.sha256(object_file).digest() == content[:_HASH_BYTES] else None


def _write(path: Path, object_file: bytes) -> None:
    """In one step, so that a process that starts at the same moment sees the whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(handle, "wb") as f:
        f.write(hashlib.sha256(object_file).digest() + object_file)
    os.replace(temporary, path)
