"""A run as JSON: the rows, and where, when and with what they were measured."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from switchreduce import __version__
from switchreduce.errors import UsageError
from switchreduce.sim.bench.rows import Row

BMV2 = "simple_switch_grpc"
PACKAGES = ("numpy", "numba", "torch")


def write_json(path: Path, rows: Sequence[Row], command: str) -> None:
    """Raises UsageError if the file cannot be written."""
    report = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": command,
        "machine": machine(),
        "versions": versions(),
        "rows": [row_facts(row) for row in rows],
    }
    try:
        path.write_text(json.dumps(report, indent=1) + "\n")
    except OSError as error:
        raise UsageError(f"--json {path}: {error.strerror}") from error


def row_facts(row: Row) -> dict[str, Any]:
    """A row's fields; ``expected`` is the ratio that its target asks for, ``at_most`` which side is good."""
    facts = asdict(row)
    target = facts.pop("target")
    facts["expected"] = None if target is None else target["ratio"]
    facts["at_most"] = None if target is None else target["at_most"]
    facts["met"] = row.met
    return facts


def machine() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load": list(os.getloadavg()),
    }


def versions() -> dict[str, str | None]:
    """Of what the figures depend on; None for what is not there."""
    found: dict[str, str | None] = {"switchreduce": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    found["bmv2"] = _bmv2_version()
    return found


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _bmv2_version() -> str | None:
    if shutil.which(BMV2) is None:
        return None
    said = subprocess.run([BMV2, "--version"], capture_output=True, text=True, timeout=10)
    return said.stdout.strip() or "unknown"
