"""`switchreduce demo`: the whole system on this machine, on real gradients, checked."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from switchreduce import defaults
from switchreduce.errors import SwitchReduceError, UsageError
from switchreduce.p4.builds import build_names, constants
from switchreduce.sim.data import load_rank_arrays, load_recorded_gradients
from switchreduce.sim.processes import Process, exit_on_signals
from switchreduce.worker.cli import parse_codecs
from switchreduce.worker.codec.reference import ExactResult, exact_allreduce
from switchreduce.worker.collective import CODECS, OPS
from switchreduce.worker.warm import warm_up

COMPILE_TIMEOUT = 300.0  # s, for numba on a slow machine; warm starts take about two
RUN_TIMEOUT = 600.0


@dataclass(frozen=True)
class Row:
    """One codec's run. Bytes are UDP payload that one worker sent, the mean over workers."""

    codec: str
    exact: bool
    bytes_sent: float
    ratio: float  # dense float32 bytes over bytes_sent
    seconds: float  # of the slowest worker
    retransmits: int  # of all workers
    max_error: float  # largest |result - float64 sum|
    error_bound: float  # what quantising and rounding allow there


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input", type=Path, metavar="FILE.npz",
        help="arrays rank0, rank1, ..., or one array that is split over the workers "
        "(default: recorded gradients of a recommender in training on MovieLens)",
    )  # fmt: skip
    parser.add_argument("--workers", type=int, metavar="N", help="default: 4, or as many as the input has")
    parser.add_argument(
        "--codec",
        default=",".join(CODECS),
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
        raise UsageError(f"--loss {options.loss}: a share from 0 to below 1")
    if options.seed < 0:
        raise UsageError(f"--seed {options.seed}: a whole number from 0")
    arrays = load_inputs(options.input, options.workers)
    started = time.monotonic()
    with exit_on_signals(), tempfile.TemporaryDirectory(prefix="switchreduce-") as folder:
        outputs, reports = run_processes(options, arrays, Path(folder), started)
        say(started, "checking every rank's result")
        rows = check(codecs, arrays, outputs, reports, options.op)
    exact = all(row.exact for row in rows)
    if options.json:
        print(json.dumps({"exact": exact, "rows": [asdict(row) for row in rows]}))
    else:
        print_table(rows, arrays, options)
    return 0 if exact else 1


def say(started: float, text: str) -> None:
    print(f"[{time.monotonic() - started:5.1f} s] {text}", file=sys.stderr, flush=True)


def load_inputs(path: Path | None, workers: int | None) -> list[np.ndarray]:
    """One array per worker."""
    if workers is not None and not 1 <= workers <= constants.MAX_RANKS:
        raise UsageError(f"--workers {workers}: a job has 1 to {constants.MAX_RANKS} ranks")
    if path is not None:
        arrays = load_rank_arrays(path, workers)
        if len(arrays) > constants.MAX_RANKS:
            raise UsageError(f"{path} has {len(arrays)} ranks, and a job up to {constants.MAX_RANKS}")
        return arrays
    recorded = load_recorded_gradients()
    if workers is None or workers == len(recorded):
        return recorded
    # other counts reuse the recorded ranks' gradients in turn, so every rank still has a real one
    return [recorded[rank % len(recorded)] for rank in range(workers)]


def run_processes(
    options: argparse.Namespace, arrays: list[np.ndarray], folder: Path, started: float
) -> tuple[dict[str, list[np.ndarray]], list[dict[str, dict[str, float]]]]:
    """Run switch, controller and workers; returns each codec's outputs by rank, and each rank's reports."""
    for rank, array in enumerate(arrays):
        np.save(folder / f"in{rank}.npy", array)
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
                    f"worker {rank}", "worker", "allreduce", "--controller", listen, "--job", "demo",
                    "--rank", str(rank), "--world-size", str(len(arrays)), "--codec", options.codec,
                    "--op", options.op, "--input", str(folder / f"in{rank}.npy"),
                    "--output", str(folder / f"out{rank}.{{codec}}.npy"), "--json",
                )
            )
            for rank in range(len(arrays))
        ]  # fmt: skip
        reports = []
        for worker in workers:
            if worker.wait(RUN_TIMEOUT):
                raise SwitchReduceError(f"{worker.name} failed: {worker.last_line}")
            rows = json.loads(worker.last_line)["rows"]
            reports.append({row["codec"]: row for row in rows})
        say(started, "stopping")
    outputs = {
        codec: [np.load(folder / f"out{rank}.{codec}.npy") for rank in range(len(arrays))]
        for codec in parse_codecs(options.codec)
    }
    return outputs, reports


def check(
    codecs: list[str],
    arrays: list[np.ndarray],
    outputs: dict[str, list[np.ndarray]],
    reports: list[dict[str, dict[str, float]]],
    op: str,
) -> list[Row]:
    """Compare every rank's output, bit for bit, with the exact result computed here without any of it."""
    flat = [array.reshape(-1) for array in arrays]
    expected = exact_allreduce(flat, op)
    truth = np.sum([array.astype(np.float64) for array in flat], axis=0)
    if op == "mean":
        truth /= len(flat)
    dense_bytes = arrays[0].size * 4
    rows = []
    for codec in codecs:
        sent = sum(report[codec]["bytes_sent"] for report in reports) / len(reports)
        with np.errstate(invalid="ignore"):
            error = np.abs(expected.result.astype(np.float64) - truth)
        # a sum beyond the dtype is infinite, as NumPy's would be; its bits are checked, it has no error
        error[~np.isfinite(expected.result)] = 0
        worst = int(np.argmax(error)) if error.size else -1
        rows.append(
            Row(
                codec=codec,
                exact=is_exact(outputs[codec], expected, error, arrays[0].shape),
                bytes_sent=sent,
                ratio=dense_bytes / sent if sent else 0.0,
                seconds=max(report[codec]["seconds"] for report in reports),
                retransmits=int(sum(report[codec]["retransmits"] for report in reports)),
                max_error=float(error[worst]) if worst >= 0 else 0.0,
                error_bound=float(expected.bound[worst]) if worst >= 0 else 0.0,
            )
        )
    return rows


def is_exact(
    outputs: list[np.ndarray], expected: ExactResult, error: np.ndarray, shape: tuple[int, ...]
) -> bool:
    """Whether all ranks hold the expected bits, and these are as near the real sum as promised."""
    wanted = expected.result.tobytes()
    same = all(
        out.dtype == expected.result.dtype and out.shape == shape and out.tobytes() == wanted
        for out in outputs
    )
    return same and bool((error <= expected.bound).all())


def print_table(rows: list[Row], arrays: list[np.ndarray], options: argparse.Namespace) -> None:
    nonzero = float(np.mean([np.count_nonzero(array) / max(array.size, 1) for array in arrays]))
    print(
        f"{len(arrays)} workers, {arrays[0].size:,} {arrays[0].dtype} each, {nonzero:.1%} non-zero; "
        f"build {options.build}, loss {options.loss:g}"
    )
    print(
        f"{'codec':8} {'bytes/worker':>13} {'dense float32':>13} {'ratio':>7} {'seconds':>8} "
        f"{'retransmits':>11} {'max error':>10} {'allowed':>10}  exact"
    )
    for row in rows:
        print(
            f"{row.codec:8} {row.bytes_sent:>13,.0f} {arrays[0].size * 4:>13,} {row.ratio:>6.2f}x "
            f"{row.seconds:>8.3f} {row.retransmits:>11,} {row.max_error:>10.2e} {row.error_bound:>10.2e}  "
            f"{'yes' if row.exact else 'NO'}"
        )
