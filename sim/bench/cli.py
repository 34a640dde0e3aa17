"""``switchreduce bench``: run parts of the benchmark and show their rows."""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from switchreduce.errors import UsageError
from switchreduce.sim.bench import chart, report, table
from switchreduce.sim.bench.measure import REPETITIONS, Settings
from switchreduce.sim.bench.rows import Row
from switchreduce.sim.processes import exit_on_signals

# Each part's module has run(settings) -> rows; it is imported when it is chosen.
PARTS = {
    "codec": ("switchreduce.sim.bench.codec", "what encoding and decoding cost, against reading the array"),
    "switch": ("switchreduce.sim.bench.switch", "the embedded switch and BMv2 with the same packets"),
    "wire": ("switchreduce.sim.bench.wire", "bits that a rank sends, against the entropy bound"),
    "allreduce": ("switchreduce.sim.bench.allreduce.part", "whole calls against torch.distributed's Gloo"),
}
ALL = "all"
PROFILED_PART = "allreduce"
LEAST_REPETITIONS = 7


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options to ``parser``."""
    width = max(map(len, (*PARTS, ALL)))
    parts = [f"  {name:{width}}  {summary}" for name, (_, summary) in PARTS.items()]
    parser.epilog = "\n".join(["parts:", *parts, f"  {ALL:{width}}  one after the other"])
    parser.add_argument("part", choices=[*PARTS, ALL], metavar="PART", help=f"{', '.join(PARTS)} or {ALL}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write rows, machine and versions there")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the ratios there (needs matplotlib)")
    parser.add_argument(
        "--profile", type=Path, metavar="FILE",
        help="allreduce: draw there where a call's time goes (needs py-spy and matplotlib)",
    )  # fmt: skip
    parser.add_argument(
        "--repetitions",
        type=int,
        default=REPETITIONS,
        metavar="N",
        help=f"at least {LEAST_REPETITIONS} (default %(default)s)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, to see that it runs: the figures mean nothing"
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit with status 1 if a target is missed or a row is missing"
    )


def run(options: argparse.Namespace) -> int:
    """The exit status. Raises SwitchReduceError."""
    if options.repetitions < LEAST_REPETITIONS:
        raise UsageError(f"--repetitions {options.repetitions}: a median needs {LEAST_REPETITIONS} or more")
    if options.svg is not None:
        chart.require_matplotlib()  # before the minutes that measuring takes
    if options.profile is not None:
        _check_profile(options.part)
    settings = Settings(options.quick, options.repetitions, options.profile)
    rows: list[Row] = []
    with exit_on_signals():  # so that the processes that a part starts are stopped
        for part in PARTS if options.part == ALL else [options.part]:
            settings.say(f"{part}{' (quick)' if options.quick else ''}")
            rows += importlib.import_module(PARTS[part][0]).run(settings)
    if options.json is not None:
        report.write_json(options.json, rows, shlex.join(["switchreduce", *sys.argv[1:]]))
    if options.svg is not None:
        chart.draw(options.svg, rows)
    if options.quick:  # figures that mean nothing meet or miss nothing
        rows = [replace(row, target=None) for row in rows]
    print(table.format_table(rows))
    failed = [row for row in rows if row.missing or row.met is False]
    return 1 if options.strict and failed else 0


def _check_profile(part: str) -> None:
    """Raises UsageError where --profile can come to nothing."""
    from switchreduce.sim.bench.allreduce.profile import find_spy

    if part not in (PROFILED_PART, ALL):
        raise UsageError(f"--profile is for the part {PROFILED_PART}")
    chart.require_matplotlib()
    find_spy()
