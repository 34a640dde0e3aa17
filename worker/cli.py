"""`switchreduce worker`: one rank from the command line."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from switchreduce import defaults
from switchreduce.errors import UsageError
from switchreduce.patience import patience
from switchreduce.worker.calls import CODECS, OPS
from switchreduce.worker.codec import warm_up_exact
from switchreduce.worker.communicator import CallReport, Communicator
from switchreduce.worker.planner import MINIMISE

EXAMPLE = """\
example, two ranks in two terminals, in any order:
  switchreduce worker allreduce --job demo --rank 0 --world-size 2 --input a.npy --output sum0.npy
  switchreduce worker allreduce --job demo --rank 1 --world-size 2 --input b.npy --output sum1.npy

A switch and a controller must run: `switchreduce switch --help`, `switchreduce controller --help`.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    allreduce = actions.add_parser(
        "allreduce",
        help="sum an array over all ranks",
        description="Sum an array over all ranks of a job, inside the switch.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    allreduce.add_argument(
        "--controller", default=f"127.0.0.1:{defaults.CONTROLLER_PORT}", metavar="HOST:PORT",
        help="where `switchreduce controller` listens (default: %(default)s)",
    )  # fmt: skip
    allreduce.add_argument("--job", required=True, metavar="NAME", help="the same on all ranks of the job")
    allreduce.add_argument("--rank", type=int, required=True, help="this rank, from 0")
    allreduce.add_argument("--world-size", type=int, required=True, metavar="N", help="number of ranks")
    allreduce.add_argument(
        "--input", type=Path, required=True, metavar="IN.npy", help="float32, float64, int32 or float16"
    )
    allreduce.add_argument(
        "--output", type=Path, metavar="OUT.npy",
        help="where the sum goes; {codec} in the name is replaced (default: nowhere)",
    )  # fmt: skip
    allreduce.add_argument("--op", choices=OPS, default="sum", help="default: %(default)s")
    allreduce.add_argument(
        "--codec", default="auto", metavar="NAME[,NAME]",
        help=f"one of {', '.join(CODECS)}, or several: one allreduce with each (default: %(default)s)",
    )  # fmt: skip
    allreduce.add_argument(
        "--slots", type=int, default=0, help="switch slots wanted (default: the controller's)"
    )
    allreduce.add_argument(
        "--timeout", type=float, default=defaults.JOIN_TIMEOUT, metavar="S",
        help="seconds to wait for the controller, the other ranks and for progress (default: %(default)g)",
    )  # fmt: skip
    allreduce.add_argument(
        "--minimise", choices=MINIMISE, default=MINIMISE[0],
        help="what the choice of codec and index is for (default: %(default)s)",
    )  # fmt: skip
    allreduce.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def read_array(path: Path) -> np.ndarray:
    """An array from a ``.npy`` file. Raises UsageError for anything else."""
    try:
        with path.open("rb") as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
            if file.read(1):
                raise ValueError("it goes on after the array's end")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except MemoryError as error:
        raise UsageError(f"{path}: the array it declares does not fit in memory") from error
    # The header is Python source that NumPy gives to the interpreter's parser (literals only); what that,
    # and making a dtype of the outcome, raise on nonsense has no narrower common base.
    except Exception as error:
        raise UsageError(f"{path}: not a readable .npy file ({' '.join(str(error).split())})") from error
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def write_array(path: Path, array: np.ndarray) -> None:
    """Write ``.npy`` so that the file is either whole or not there."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                np.save(file, array)
                file.close()
                os.chmod(file.name, 0o644)
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def parse_codecs(text: str) -> list[str]:
    codecs = text.split(",")
    for codec in codecs:
        if codec not in CODECS:
            raise UsageError(f"--codec {codec}: choose from {', '.join(CODECS)}")
    return codecs


def run(options: argparse.Namespace) -> int:
    codecs = parse_codecs(options.codec)
    array = read_array(options.input)
    if options.output is not None and len(codecs) > 1 and "{codec}" not in options.output.name:
        raise UsageError(f"--output {options.output}: with several codecs the name needs a {{codec}} in it")
    if options.output is not None and not options.output.parent.is_dir():
        raise UsageError(f"--output {options.output}: there is no folder {options.output.parent}")
    rows: list[dict[str, object]] = []
    if "exact" in codecs and array.dtype.kind == "f":
        warm_up_exact(array.dtype)  # before others count on this rank
    with patience(
        f"rank {options.rank} of job {options.job} waits for {options.controller} and the other ranks"
    ):
        communicator = Communicator.connect(
            options.controller,
            job=options.job,
            rank=options.rank,
            world_size=options.world_size,
            slots=options.slots,
            timeout=options.timeout,
            minimise=options.minimise,
        )
    with communicator:
        for codec in codecs:
            result = array.copy()
            started = time.perf_counter()
            report = communicator.allreduce(result, op=options.op, codec=codec)
            rows.append(describe(codec, report, array.nbytes, time.perf_counter() - started))
            if options.output is not None:
                write_array(Path(str(options.output).replace("{codec}", codec)), result)
    if options.json:
        print(json.dumps({"rank": options.rank, "rows": rows}))
    else:
        print_rows(options.rank, rows)
    return 0


def describe(codec: str, report: CallReport, dense_bytes: int, seconds: float) -> dict[str, object]:
    return {
        "codec": codec,
        "carried_by": report.codec,
        "bytes_sent": report.bytes_sent,
        "ratio": dense_bytes / report.bytes_sent if report.bytes_sent else None,
        "seconds": seconds,
        "retransmits": report.retransmits,
    }


def print_rows(rank: int, rows: list[dict[str, object]]) -> None:
    print(f"{'rank':>4} {'codec':11} {'bytes sent':>12} {'ratio':>7} {'seconds':>8} {'retransmits':>11}")
    for row in rows:
        codec = row["codec"] if row["codec"] != "auto" else f"auto={row['carried_by']}"
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}x"
        print(
            f"{rank:>4} {codec:11} {row['bytes_sent']:>12,} {ratio:>7} {row['seconds']:>8.3f} "
            f"{row['retransmits']:>11,}"
        )
    sys.stdout.flush()
