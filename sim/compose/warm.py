"""Compile what containers of the image will run, when it is built: a start then takes seconds.

Machine code is for the kind of processor that compiles it; on another, the first start compiles once more.
"""

from __future__ import annotations

from switchreduce.p4.builds import build_names, load_build
from switchreduce.sim.target import Switch, load_program
from switchreduce.worker.warm import warm_up


def main() -> None:
    warm_up()
    for name in build_names():
        print(f"warm: {name}", flush=True)
        Switch(load_program(load_build(name).json_path))


if __name__ == "__main__":
    main()
