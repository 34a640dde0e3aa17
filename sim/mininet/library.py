"""Mininet itself: found, or missed with a word on what to install.

Debian's package puts Mininet where Debian's Python looks, and nowhere else; a virtual environment, or another
Python, does not see it. It is pure Python, so any Python that runs it can take it from there.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys

from switchreduce.errors import UsageError

DEBIAN_PACKAGES = "/usr/lib/python3/dist-packages"
PROGRAMS = {
    "mnexec": "mininet",
    "setpriv": "util-linux",
    "ifconfig": "net-tools",
    "ip": "iproute2",
    "tc": "iproute2",
}


def require_mininet() -> None:
    """Make `import mininet` work and check what it runs. Raises UsageError."""
    if os.geteuid() != 0:
        raise UsageError("network namespaces need root: use sudo")
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            raise UsageError(f"there is no {program} on PATH: apt-get install {package}")
    if subprocess.run(["mnexec", "-n", "true"], capture_output=True).returncode:
        raise UsageError("this root may not make network namespaces; a container needs --privileged for it")
    try:
        _import_mininet()
    except ModuleNotFoundError as error:
        if error.name == "mininet":
            raise UsageError("Python does not find Mininet: apt-get install mininet") from None
        # Mininet 2.3 imports distutils, which left the standard library in 3.12 and lives on in setuptools
        raise UsageError(
            f"Mininet needs {error.name}, which this Python lacks: pip install setuptools"
        ) from None


def _import_mininet() -> None:
    try:
        importlib.import_module("mininet.node")
    except ModuleNotFoundError as error:
        if error.name != "mininet":
            raise
        # only while importing: none of Debian's other packages may stand in for one of ours
        sys.path.append(DEBIAN_PACKAGES)
        try:
            importlib.import_module("mininet.node")
        finally:
            sys.path.remove(DEBIAN_PACKAGES)
