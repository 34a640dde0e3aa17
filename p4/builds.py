"""The P4 program's committed builds, as data.

This folder has no ``__init__.py``, so that it does not stand in the way of the ``p4`` package that holds
P4Runtime's protobuf stubs when Python is started in the repository.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from switchreduce.errors import UsageError

DEFAULT_BUILD = "wide256"

_BUILD_FOLDER = Path(__file__).resolve().parent / "build"


@dataclass(frozen=True)
class Build:
    """One compiled form of the program."""

    name: str
    lanes: int
    layout: str
    json_path: Path
    p4info_path: Path

    @property
    def program(self) -> dict[str, Any]:
        """The BMv2 JSON, parsed."""
        return _read_json(self.json_path)


@cache
def _read_json(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def manifest() -> dict[str, Any]:
    """What ``p4/build`` was made of; see :mod:`switchreduce.p4.build`."""
    return _read_json(_BUILD_FOLDER / "manifest.json")


def build_names() -> list[str]:
    return list(manifest()["builds"])


def load_build(name: str = DEFAULT_BUILD) -> Build:
    """The build `name`. Raises UsageError for one that does not exist."""
    builds = manifest()["builds"]
    if name not in builds:
        raise UsageError(f"no build is called {name!r}: choose one of {', '.join(builds)}")
    return Build(
        name=name,
        lanes=builds[name]["lanes"],
        layout=builds[name]["layout"],
        json_path=_BUILD_FOLDER / f"{name}.json",
        p4info_path=_BUILD_FOLDER / f"{name}.p4info.txtpb",
    )


def build_with_lanes(lanes: int) -> Build:
    """The first build whose packets carry `lanes` lanes: all such builds speak the same bytes."""
    for name, facts in manifest()["builds"].items():
        if facts["lanes"] == lanes:
            return load_build(name)
    raise UsageError(f"this version has no build with {lanes} lanes: update worker or switch")


constants = SimpleNamespace(**manifest()["constants"])
"""The numbers of ``constants.p4`` by name, as integers."""


def constant_names(prefix: str) -> dict[int, str]:
    """Those whose names start with `prefix`, by value and without it: for "OP_" {0: "sum", ...}."""
    return {
        value: name.removeprefix(prefix).lower()
        for name, value in vars(constants).items()
        if name.startswith(prefix)
    }
