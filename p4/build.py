"""Compile the P4 program into ``p4/build``: ``python p4/build.py [--check]`` (``make p4``).

The compiled JSON and P4Info are committed, so nobody needs a P4 compiler to run the system. The manifest
beside them holds the sha256 of every source (so that a test notices a source that changed without a
rebuild), the compiler's version and the protocol's constants.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from switchreduce.errors import SwitchReduceError, UsageError

ROOM = Path(__file__).resolve().parent
BUILD = ROOM / "build"
MAIN = "switchreduce.p4"
DOCKER_IMAGE = "p4lang/p4c"


@dataclass(frozen=True)
class Variant:
    """One build of the program: how many lanes a packet has and how they are laid out."""

    name: str
    lanes: int
    layout: str  # "wide": 64 lanes a field; "narrow": a field a lane

    @property
    def flags(self) -> list[str]:
        return [f"-DLANES={self.lanes}", f"-DLAYOUT_{self.layout.upper()}"]


VARIANTS = (
    Variant("wide256", 256, "wide"),
    Variant("narrow256", 256, "narrow"),
    Variant("jumbo2048", 2048, "wide"),  # 8 KB: for networks whose MTU the user sets
)


def source_digests(room: Path = ROOM) -> dict[str, str]:
    """sha256 of every P4 source by file name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(room.glob("*.p4"))}


def read_constants(source: str) -> dict[str, int]:
    """The ``const`` declarations of a P4 source whose value is a literal."""
    pattern = r"^const\s+(?:bit<\d+>|int)\s+(\w+)\s*=\s*(0x[0-9a-fA-F]+|\d+)\s*;"
    return {name: int(value, 0) for name, value in re.findall(pattern, source, re.MULTILINE)}


def compiler_command() -> list[str]:
    """``p4c-bm2-ss`` from PATH or, failing that, from docker's p4lang/p4c, mounted on this folder."""
    if shutil.which("p4c-bm2-ss"):
        return ["p4c-bm2-ss"]
    if shutil.which("docker"):
        mount = f"{ROOM}:{ROOM}"
        return ["docker", "run", "--rm", "-v", mount, "-w", str(ROOM), DOCKER_IMAGE, "p4c-bm2-ss"]
    raise UsageError("no P4 compiler: put p4c-bm2-ss on PATH or start docker (image p4lang/p4c)")


def _run(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ROOM, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr or done.stdout).strip() or f"exit status {done.returncode}"
        raise SwitchReduceError(f"{command[0]} failed: {reason}")
    return done.stdout + done.stderr


def compiler_version(command: list[str]) -> str:
    match = re.search(r"[Vv]ersion:?\s*(\S+)", _run([*command, "--version"]))
    return match.group(1) if match else "unknown"


def compile_variant(command: list[str], variant: Variant, folder: Path) -> None:
    """Write ``<name>.json`` and ``<name>.p4info.txtpb`` into `folder`, which lies below this room."""
    program = folder / f"{variant.name}.json"
    p4info = folder / f"{variant.name}.p4info.txtpb"
    outputs = ["--p4runtime-files", str(p4info), "-o", str(program)]
    _run([*command, "--std", "p4-16", *variant.flags, *outputs, MAIN])
    program.write_text(json.dumps(stripped(json.loads(program.read_text())), separators=(",", ":")) + "\n")


def stripped(program: object) -> object:
    """The program without source positions and the compiler's command line.

    They are half of the file, mean nothing to a switch, and would name the machine that compiled it.
    """
    if isinstance(program, dict):
        return {
            key: stripped(value) for key, value in program.items() if key not in ("source_info", "program")
        }
    if isinstance(program, list):
        return [stripped(value) for value in program]
    return program


def build(folder: Path = BUILD) -> None:
    """Compile every variant and write the manifest."""
    command = compiler_command()
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOM, prefix=".build-") as scratch:
        for variant in VARIANTS:
            compile_variant(command, variant, Path(scratch))
            print(f"compiled {variant.name}", file=sys.stderr)
        manifest = {
            "compiler": f"p4c-bm2-ss {compiler_version(command)}",
            "sources": source_digests(),
            "constants": read_constants((ROOM / "constants.p4").read_text()),
            "builds": {v.name: {"lanes": v.lanes, "layout": v.layout} for v in VARIANTS},
        }
        outputs = {}
        for path in sorted(Path(scratch).iterdir()):
            outputs[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
            shutil.copyfile(path, folder / path.name)
    (folder / "manifest.json").write_text(json.dumps({**manifest, "outputs": outputs}, indent=2) + "\n")


def stale(folder: Path = BUILD) -> list[str]:
    """Names of sources and outputs that disagree with the manifest."""
    manifest = json.loads((folder / "manifest.json").read_text())
    outputs = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.name != "manifest.json"
    }
    problems = []
    for expected, actual in ((manifest["sources"], source_digests()), (manifest["outputs"], outputs)):
        problems += [name for name in sorted({*expected, *actual}) if expected.get(name) != actual.get(name)]
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile the P4 program into p4/build.")
    parser.add_argument("--check", action="store_true", help="only say whether sources and build agree")
    arguments = parser.parse_args()
    try:
        if not arguments.check:
            build()
        problems = stale()
    except SwitchReduceError as error:
        print(f"build: error: {error}", file=sys.stderr)
        return 1
    for name in problems:
        print(f"build: {name} disagrees with build/manifest.json: run `make p4`", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
