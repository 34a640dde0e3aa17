"""`switchreduce demo`: the whole system on this machine, on real gradients, checked."""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from switchreduce import defaults
from switchreduce.errors import UsageError
from switchreduce.p4.builds import build_names, constants
from switchreduce.sim.processes import Process, exit_on_signals
from switchreduce.sim.ranks import Reports, collect, load_inputs, save_inputs, say, worker_arguments
from switchreduce.sim.results import check, print_report
from switchreduce.worker.calls import CODECS, OPS
from switchreduce.worker.cli import parse_codecs
from switchreduce.worker.warm import warm_up

COMPILE_TIMEOUT = 300.0  # s, for numba on a slow machine; warm starts take about two


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input", type=Path, metavar="FILE.npz",
        help="arrays rank0, rank1, ..., or one array that is split over the workers "
        "(default: recorded gradients of a recommender in training on MovieLens)",
    )  # fmt: skip
    parser.add_argument("--workers", type=int, metavar="N", help="default: 4, or as many as the input has")
    parser.add_argument(
        "--codec",
        default="packed,sketch,dense",
        metavar="C[,C]",
        help=f"of {', '.join(CODECS)}; one allreduce with each (default: %(default)s)",
    )
    parser.add_argument("--op", choices=OPS, default="sum", help="default: %(default)s")
    parser.add_argument("--build", choices=build_names(), default=defaults.BUILD, help="default: %(default)s")
    parser.add_argument(
        "--loss", type=float, default=0.0, metavar="P",
        help="share of packets that the network loses, each way (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the losses (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(options: argparse.Namespace) -> int:
    codecs = parse_codecs(options.codec)
    if not 0 <= options.loss < 1:
        raise UsageError(f"--loss {options.loss}: a share from 0 to below 1 (0.01: 1 %)")
    if options.seed < 0:
        raise UsageError(f"--seed {options.seed}: a whole number from 0")
    arrays = load_inputs(options.input, options.workers)
    started = time.monotonic()
    with exit_on_signals(), tempfile.TemporaryDirectory(prefix="switchreduce-") as folder:
        outputs, reports = run_processes(options, arrays, Path(folder), started)
        say(started, "checking every rank's result")
        rows = check(codecs, arrays, outputs, reports, options.op)
    setting = f"build {options.build}, loss {options.loss:g}"
    return print_report(rows, arrays, setting, options.json)


def run_processes(
    options: argparse.Namespace, arrays: list[np.ndarray], folder: Path, started: float
) -> tuple[dict[str, list[np.ndarray]], Reports]:
    """Run switch, controller and workers; returns each codec's outputs by rank, and each rank's reports."""
    codecs = parse_codecs(options.codec)
    save_inputs(arrays, folder)
    with ExitStack() as running:
        say(
            started,
            "starting switch and controller (the first time here they compile: half a minute)",
        )
        switch = running.enter_context(
            Process(
                "switch", "switch", "--no-p4", "--cpu-port", str(constants.CPU_PORT),
                "--grpc-server-addr", "127.0.0.1:0",
                "--udp", f"127.0.0.1:0@{defaults.AGGREGATION_ADDRESS}:{constants.AGGREGATION_PORT}",
                "--loss", str(options.loss), "--seed", str(options.seed),
            )
        )  # fmt: skip
        ready = switch.wait_for(r"P4Runtime on (\S+), data on udp (\S+)", COMPILE_TIMEOUT)
        p4runtime, data = ready.groups()
        controller = running.enter_context(
            Process(
                "controller", "controller", "--listen", "127.0.0.1:0", "--switch", p4runtime,
                "--data-address", data, "--build", options.build,
            )
        )  # fmt: skip
        warm_up()  # compile the workers' kernels once, here, rather than in each of them at the same time
        listen = controller.wait_for(r"workers join at (\S+?),? ", COMPILE_TIMEOUT).group(1)
        say(started, f"{options.build} runs on the switch; starting {len(arrays)} workers")
        workers = [
            running.enter_context(
                Process(
                    f"worker {rank}",
                    *worker_arguments(rank, len(arrays), listen, codecs, options.op, folder),
                )
            )
            for rank in range(len(arrays))
        ]
        outputs, reports = collect(workers, codecs, folder)
        say(started, "stopping")
    return outputs, reports
