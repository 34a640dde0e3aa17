"""An allreduce on a star of network namespaces: workers around BMv2 or the embedded switch, checked.

sudo python -m switchreduce.sim.mininet.star --workers 4 --switch bmv2 --loss 1
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from switchreduce import defaults
from switchreduce.errors import SwitchReduceError, UsageError
from switchreduce.p4.builds import build_names, constants
from switchreduce.sim.mininet.capture import Capture
from switchreduce.sim.mininet.impairment import Impairment, impair
from switchreduce.sim.mininet.library import require_mininet
from switchreduce.sim.mininet.topology import AGGREGATION_ADDRESS, MANAGEMENT_ADDRESS, Star, inside
from switchreduce.sim.processes import SWITCHREDUCE, Process, exit_on_signals
from switchreduce.sim.ranks import Reports, collect, load_inputs, save_inputs, say, worker_arguments
from switchreduce.sim.results import check, print_report
from switchreduce.worker.cli import parse_codecs
from switchreduce.worker.warm import warm_up

BMV2 = "simple_switch_grpc"
P4RUNTIME = f"127.0.0.1:{defaults.P4RUNTIME_PORT}"  # of the switch's namespace
CONTROLLER = f"{MANAGEMENT_ADDRESS}:{defaults.CONTROLLER_PORT}"
COMPILE_TIMEOUT = 300.0  # s, for numba on a slow machine
OP = "sum"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="star", description="Sum real gradients through a P4 switch on real interfaces (root, Mininet)."
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="hosts (default: 4, or as many as the input has)"
    )
    parser.add_argument("--bw", type=float, metavar="MBIT", help="bandwidth of each link (default: no limit)")
    parser.add_argument("--delay", metavar="T", help="of each link, like 10ms (default: none; needs netem)")
    parser.add_argument(
        "--loss",
        type=float,
        default=0.0,
        metavar="PCT",
        help="percent of packets lost, each way (default: 0)",
    )
    parser.add_argument(
        "--switch", choices=("bmv2", "embedded"),
        help=f"default: bmv2 if {BMV2} is on PATH, else embedded",
    )  # fmt: skip
    parser.add_argument("--build", choices=build_names(), default=defaults.BUILD, help="default: %(default)s")
    parser.add_argument(
        "--input", type=Path, metavar="FILE",
        help="as `switchreduce demo` takes it (default: recorded gradients)",
    )  # fmt: skip
    parser.add_argument(
        "--codec", default="packed,sketch,dense", metavar="C[,C]",
        help="one allreduce with each (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--pcap", type=Path, metavar="DIR", help="capture every port of the switch there")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--debug", action="store_true", help="show the trace of an error")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 if every rank got the exact sum."""
    options = parse(arguments)
    try:
        return run(options)
    except (SwitchReduceError, OSError, MemoryError) as error:
        if options.debug:
            raise
        print(f"star: error: {error or 'out of memory'}", file=sys.stderr)
        return 1


def run(options: argparse.Namespace) -> int:
    codecs = parse_codecs(options.codec)
    impairment = Impairment(options.bw, options.delay, options.loss)
    arrays = load_inputs(options.input, options.workers)
    require_mininet()
    target = options.switch or ("bmv2" if shutil.which(BMV2) else "embedded")
    if target == "bmv2" and shutil.which(BMV2) is None:
        raise UsageError(f"there is no {BMV2} on PATH: install BMv2, or take --switch embedded")
    started = time.monotonic()
    with exit_on_signals(), tempfile.TemporaryDirectory(prefix="switchreduce-") as folder:
        outputs, reports = run_star(
            target, options.build, impairment, arrays, codecs, Path(folder), options.pcap, started
        )
        say(started, "checking every rank's result")
        rows = check(codecs, arrays, outputs, reports, OP)
    return print_report(rows, arrays, f"{target}, build {options.build}, {impairment}", options.json)


def run_star(
    target: str,
    build: str,
    impairment: Impairment,
    arrays: list[np.ndarray],
    codecs: list[str],
    folder: Path,
    pcap: Path | None,
    started: float,
) -> tuple[dict[str, list[np.ndarray]], Reports]:
    """Build the star, run a job on it and take it down; see `collect` for what it returns."""
    save_inputs(arrays, folder)
    warm_up()  # compile the workers' kernels once, here, rather than in each of them at the same time
    with ExitStack() as running:
        say(started, f"building a star of {len(arrays)} hosts; {impairment}")
        star = running.enter_context(Star(len(arrays)))
        impair(star, impairment)
        capture = running.enter_context(Capture(star, pcap)) if pcap is not None else None
        compiles = " (the first start compiles: about half a minute)" if target == "embedded" else ""
        say(started, f"starting {target} and the controller{compiles}")
        switch = running.enter_context(start_switch(target, star))
        running.enter_context(start_controller(star, switch, build))
        say(started, f"{build} runs on the switch; starting {len(arrays)} workers")
        workers = [
            running.enter_context(
                Process(
                    f"worker {rank}",
                    *worker_arguments(rank, len(arrays), CONTROLLER, codecs, OP, folder),
                    program=(*inside(host), *SWITCHREDUCE),
                )
            )
            for rank, host in enumerate(star.hosts)
        ]
        outputs, reports = collect(workers, codecs, folder)
        say(started, "stopping")
    if capture is not None:
        say(started, f"captured {capture.frames:,} frames, missed {capture.missed:,}")
    return outputs, reports


def start_switch(target: str, star: Star) -> Process:
    """BMv2 or the embedded switch, on every port of the star; the controller brings the program."""
    own = ["--no-p4", "--device-id", str(defaults.DEVICE_ID)]
    for port, interface in star.ports.items():
        own += ["-i", f"{port}@{interface}"]
    shared = ["--grpc-server-addr", P4RUNTIME, "--cpu-port", str(constants.CPU_PORT)]
    place = inside(star.switch)
    if target == "bmv2":
        return Process("switch", *own, "--", *shared, program=(*place, BMV2))
    return Process("switch", "switch", *own, *shared, program=(*place, *SWITCHREDUCE))


def start_controller(star: Star, switch: Process, build: str) -> Process:
    """The controller, once it has programmed the switch.

    Raises SwitchReduceError if it cannot, or at once if the switch has stopped.
    """
    controller = Process(
        "controller", "controller", "--listen", CONTROLLER, "--switch", P4RUNTIME, "--build", build,
        "--aggregation-address", AGGREGATION_ADDRESS,
        program=(*inside(star.switch), *SWITCHREDUCE),
    )  # fmt: skip
    try:
        controller.wait_for("workers join at", COMPILE_TIMEOUT, needed=switch)
    except BaseException:
        controller.stop()
        raise
    return controller


if __name__ == "__main__":
    sys.exit(main())
