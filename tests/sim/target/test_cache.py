"""Compiled programs on disk: found again, shared by processes, and not needed."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "state.json"
START = f"""
from switchreduce.sim.target import Switch, load_program
switch = Switch(load_program({str(PROGRAM)!r}), progress=print)
print(len(switch.process(0, bytes(60))))
"""


def start(folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder)}
    command = [sys.executable, "-c", START]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process: subprocess.Popen[str]) -> list[str]:
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0, out
    return out.splitlines()


def test_two_processes_compile_at_once_and_a_third_finds_the_result(tmp_path: Path) -> None:
    both = [start(tmp_path), start(tmp_path)]
    assert [finish(p)[-1] for p in both] == ["1", "1"]
    assert finish(start(tmp_path)) == ["1"]  # no line about compiling


def test_without_a_writable_folder_it_compiles_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from switchreduce.sim.target import cache

    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    said: list[str] = []
    source = "def run(state, incoming, outgoing, cursor, count, most, now):\n    return cursor + 1\n"
    code = cache.compiled(source, "digest", said.append)
    assert ctypes.CFUNCTYPE(*[ctypes.c_int64] * 8)(code.address("run"))(0, 0, 0, 41, 0, 0, 0) == 42
    assert any("cannot keep compiled programs" in line for line in said)


def test_a_damaged_file_is_compiled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from switchreduce.sim.target import cache

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said: list[str] = []
    source = "def run(state, incoming, outgoing, cursor, count, most, now):\n    return cursor\n"
    cache.compiled(source, "digest", said.append)
    [path] = cache.cache_folder().iterdir()
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    for _ in range(2):
        cache.compiled(source, "digest", said.append)
    assert path.read_bytes() == content
    assert len([line for line in said if line.startswith("compiled")]) == 2
