"""One rank of the job that docker-compose.yml runs: sums its array, checks the result, prints its table.

The exit status of rank 0 speaks for all: the ranks tell each other, through the switch, whose result is
exact. The other ranks then stay until they are stopped, because `docker compose up --exit-code-from worker0`
stops every container, rank 0's too, as soon as any has ended.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from switchreduce.errors import SwitchReduceError
from switchreduce.sim.compose.stop import stay_until_stopped
from switchreduce.sim.ranks import load_inputs
from switchreduce.sim.results import Row, check, print_report
from switchreduce.worker.calls import CODECS
from switchreduce.worker.cli import parse_codecs
from switchreduce.worker.communicator import Communicator

OP = "sum"
JOIN_TIMEOUT = 60.0  # s; eight containers that start at once on two cores take a while


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rank", description=__doc__.splitlines()[0])
    parser.add_argument("--controller", required=True, metavar="HOST:PORT")
    parser.add_argument("--rank", required=True, type=int)
    parser.add_argument("--workers", required=True, type=int, metavar="N")
    parser.add_argument(
        "--loss", default="0", metavar="PCT", help="what the links do, for the table's heading"
    )
    parser.add_argument(
        "--codec", default="packed,sketch,dense", metavar="C[,C]",
        help=f"of {', '.join(CODECS)}; one allreduce with each (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--input", type=Path, metavar="FILE",
        help="as `switchreduce demo` takes it (default: recorded gradients)",
    )  # fmt: skip
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 if every rank got the exact sum."""
    options = parse(arguments)
    try:
        status = run(options)
    except (SwitchReduceError, OSError, MemoryError) as error:
        print(f"rank {options.rank}: error: {error or 'out of memory'}", file=sys.stderr, flush=True)
        status = 1
    if options.rank:
        stay_until_stopped()
    return status


def run(options: argparse.Namespace) -> int:
    codecs = parse_codecs(options.codec)
    arrays = load_inputs(options.input, options.workers)
    with Communicator.connect(
        options.controller, job="compose", rank=options.rank, world_size=len(arrays), timeout=JOIN_TIMEOUT
    ) as communicator:
        rows = [sum_and_check(communicator, codec, arrays) for codec in codecs]
        status = print_report(rows, arrays, f"rank {options.rank}, loss {options.loss} %", as_json=False)
        inexact = np.array([status], np.int32)
        communicator.allreduce(inexact, codec="dense")
    if inexact[0]:
        raise SwitchReduceError(f"{inexact[0]} of {len(arrays)} ranks hold another result than the exact one")
    return 0


def sum_and_check(communicator: Communicator, codec: str, arrays: Sequence[np.ndarray]) -> Row:
    """This rank's part of an allreduce of `arrays`, compared with what all of them add up to."""
    result = arrays[communicator.rank].copy()
    report = communicator.allreduce(result, op=OP, codec=codec)
    cost = {
        "bytes_sent": report.bytes_sent,
        "seconds": report.seconds,
        "retransmits": report.retransmits,
    }
    return check([codec], list(arrays), {codec: [result]}, [{codec: cost}], OP)[0]


if __name__ == "__main__":
    sys.exit(main())
