"""The package runs where numba has no place to keep what it compiles."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

PROGRAM = """
import os
from switchreduce.worker.transport import kernels
import numpy as np
state, times = np.zeros(1, np.int64), np.zeros(1)
kernels.survey(state, state, state, times, state, state, state)
print(os.environ.get("NUMBA_CACHE_DIR", ""))
"""


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("unshare") is None, reason="needs unshare")
def test_read_only_everywhere_but_the_temporary_folder(tmp_path):
    for name in ("package", "temporary"):
        (tmp_path / name).mkdir()
    for name in ("switchreduce", "controller", "worker", "sim", "p4"):
        shutil.copytree(
            ROOT / name, tmp_path / "package" / name, symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )  # fmt: skip
    package = tmp_path / "package"
    script = (
        f"mount --bind {package} {package} && mount -o remount,bind,ro {package} || exit 77\n"
        f"cd / && exec {sys.executable} -c '{PROGRAM}'"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "NUMBA_"))} | {
        "HOME": str(package),
        "TMPDIR": str(tmp_path / "temporary"),
        "PYTHONPATH": str(package),
    }
    done = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "sh", "-c", script],
        capture_output=True, text=True, timeout=200, env=environment,
    )  # fmt: skip
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no mounts here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "temporary"))
    assert list((tmp_path / "temporary").iterdir()) == []
