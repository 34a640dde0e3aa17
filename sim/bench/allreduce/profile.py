"""Where the time of a call goes: CPU time by stage, of one rank and of the switch, as a stacked bar each.

py-spy samples both processes while calls run. A stage's time is its share of the samples in which the process
did not wait, times the CPU time that the process used per call; the rest of a call is waiting: for the
network, the switch, the other ranks, or for a core.
"""

from __future__ import annotations

import linecache
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from switchreduce.errors import SwitchReduceError, UsageError
from switchreduce.sim.bench.allreduce.fabric import Fabric
from switchreduce.sim.bench.allreduce.plan import Contender, Plan, read_tallies, seconds
from switchreduce.sim.bench.allreduce.runner import (
    RANK,
    WARM_UP_TURNS,
    follow,
    last_lines,
    running_ranks,
    save_case,
)
from switchreduce.sim.bench.chart import require_matplotlib
from switchreduce.sim.bench.gradients import Array
from switchreduce.sim.processes import Process

RATE = 200  # samples a second
END_TIMEOUT = 30.0  # s for py-spy to write its file
BAR_INCHES = 0.55

# Stage by module and function: the innermost of the stack that is here counts; what none names is REST.
RANK_STAGES = {
    "stream.scan": "scan, vote", "planner.vote": "scan, vote",
    "blocks._quantise": "quantise",
    "index.write": "index", "index.read": "index",
    "plan.plan_packed": "plan, encode", "plan.plan_sketch": "plan, encode", "plan.plan_dense": "plan, encode",
    "encoding.encode": "plan, encode", "encoding.encode_values": "plan, encode",
    "results.collect": "decode, write", "stream.write_back": "decode, write",
    "engine.allocate": "slot engine", "engine.queue": "slot engine", "engine.release": "slot engine",
    "engine.datagrams_to_send": "slot engine", "engine.receive_datagrams": "slot engine",
    "engine.next_deadline": "slot engine", "engine.handle_timer": "slot engine",
    "udp.send": "socket send", "udp.receive": "socket receive",
}  # fmt: skip
SWITCH_STAGES = {
    "udp_messages.receive": "socket receive", "udp.receive": "frames in",
    "switch.process_batch": "P4 program",
    "dataplane._dispatch": "frames out", "udp_messages.send": "socket send", "udp._deliver": "socket send",
}  # fmt: skip
REST, WAITING = "rest", "waiting"
CALL = "_measure"  # what is in the stack of a rank while it makes a call that counts
DATA_PLANE = "dataplane.py"  # and in that of the switch's thread that moves packets


@dataclass(frozen=True)
class Bar:
    """One process in one case: milliseconds of a call by stage, in the order of the stages' table."""

    case: str
    process: str
    stages: Mapping[str, float]


def find_spy() -> str:
    """The py-spy of this Python, or of PATH. Raises UsageError."""
    own = Path(sys.executable).parent / "py-spy"
    spy = str(own) if own.exists() else shutil.which("py-spy")
    if spy is None:
        raise UsageError(
            "--profile needs py-spy: pip install 'switchreduce[bench]' (here: pip install -e '.[bench]')"
        )
    return spy


def profile(
    fabric: Fabric, name: str, arrays: list[Array], calls: int, say: Callable[[str], None]
) -> list[Bar]:
    """The bars of rank 0 and of the switch over ``calls`` calls with codec `auto`.

    Raises SwitchReduceError.
    """
    spy = find_spy()
    with tempfile.TemporaryDirectory(prefix="switchreduce-") as place:
        folder = Path(place)
        contender = Contender("auto", len(fabric.places))
        case = save_case(name, arrays, [contender], folder)
        plan = Plan(fabric.controller, len(fabric.places), "", (case,), WARM_UP_TURNS, calls)
        plan.write(folder / "plan.json")
        with running_ranks(fabric, RANK, folder / "plan.json") as ranks:
            follow(ranks, plan, say, last_turn=1)
            before = cpu_seconds(fabric.switch.pid)
            with (
                _sample(spy, ranks[0], folder / "rank") as of_rank,
                _sample(spy, fabric.switch, folder / "switch") as of_switch,
            ):
                found = [read_tallies(line) for line in last_lines(ranks)]
                switch_busy = (cpu_seconds(fabric.switch.pid) - before) / calls
                of_switch.send_signal(signal.SIGINT)
                for each in (of_rank, of_switch):
                    each.wait(END_TIMEOUT)
        tallies = [each[name][contender.name] for each in found]
        call = float(np.median(seconds(tallies)))
        rank_busy = tallies[0].cpu_seconds / calls
        return [
            _bar(name, "rank 0", folder / "rank", RANK_STAGES, CALL, rank_busy, call),
            _bar(name, "switch", folder / "switch", SWITCH_STAGES, DATA_PLANE, switch_busy, call),
        ]


def _sample(spy: str, process: Process, path: Path) -> Process:
    """py-spy, which writes collapsed stacks to ``path`` when it is interrupted or ``process`` ends."""
    return Process(
        "py-spy", "record", "--pid", str(process.pid), "--rate", str(RATE), "--nonblocking",
        "--full-filenames", "--format", "raw", "--output", str(path), program=(spy,),
    )  # fmt: skip


def cpu_seconds(pid: int) -> float:
    """What all threads of a process have used. proc(5): schedstat's first figure, nanoseconds."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def _bar(
    case: str, process: str, path: Path, table: Mapping[str, str], within: str, busy: float, call: float
) -> Bar:
    if not path.exists():
        raise SwitchReduceError(f"py-spy wrote no samples of the {process}: run as root, or let it trace")
    counts = stage_counts(path.read_text(), table, within)
    total = sum(counts.values())
    stages = {stage: 1e3 * busy * counts[stage] / total for stage in [*table.values(), REST] if counts[stage]}
    return Bar(case, process, stages | {WAITING: 1e3 * max(0.0, call - busy)})


def stage_counts(stacks: str, table: Mapping[str, str], within: str) -> Counter[str]:
    """Samples by stage, of those with ``within`` in their stack that do not wait.

    ``stacks`` has a line a stack, `outer (file:line);inner (file:line) count`.
    """
    counts: Counter[str] = Counter()
    for line in stacks.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        if within in stack and not _waits(frames[-1]):
            counts[_stage(frames, table)] += int(count)
    return counts


def _stage(frames: list[str], table: Mapping[str, str]) -> str:
    for frame in reversed(frames):
        function, _, place = frame.partition(" (")
        # Python 3.11 and later name the class too
        name = f"{Path(place.partition(':')[0]).stem}.{function.rpartition('.')[2]}"
        if name in table:
            return table[name]
    return REST


def _waits(frame: str) -> bool:
    """Whether the frame is in a system call that waits for something: that line of its source says so."""
    place = re.search(r"\((.+):(\d+)\)$", frame)
    if place is None:
        return False
    source = linecache.getline(place.group(1), int(place.group(2)))
    return re.search(r"\.(poll|select|acquire|wait)\(", source) is not None


def format_bars(bars: Sequence[Bar]) -> str:
    """The bars as lines of text."""
    lines = []
    for bar in bars:
        stages = ", ".join(f"{stage} {milliseconds:.1f}" for stage, milliseconds in bar.stages.items())
        lines.append(f"{bar.case}, {bar.process}, ms of a call: {stages}")
    return "\n".join(lines)


def draw(path: Path, bars: Sequence[Bar]) -> None:
    """Write an SVG. Raises UsageError."""
    require_matplotlib()
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    stages = list(dict.fromkeys([*RANK_STAGES.values(), *SWITCH_STAGES.values(), REST]))
    colours: dict[str, Any] = {stage: colormaps["tab20"](number) for number, stage in enumerate(stages)}
    figure = Figure(figsize=(10, 2 + BAR_INCHES * len(bars)), layout="constrained")
    axes = figure.subplots()
    ends = np.zeros(len(bars))
    for stage in stages:
        widths = np.array([bar.stages.get(stage, 0.0) for bar in bars])
        if widths.any():
            axes.barh(range(len(bars)), widths, 0.7, ends, label=stage, color=colours[stage])
        ends += widths
    for place, (end, bar) in enumerate(zip(ends, bars, strict=True)):
        # a number, as on a busy machine waiting would dwarf the rest
        axes.annotate(f" + {bar.stages.get(WAITING, 0.0):.0f} ms waiting", (end, place), va="center")
    axes.margins(x=0.2)
    axes.set_yticks(range(len(bars)), [f"{bar.case}\n{bar.process}" for bar in bars])
    axes.invert_yaxis()
    axes.set_xlabel("CPU time of a call by stage, ms")
    figure.legend(loc="outside lower center", ncols=5)
    try:
        figure.savefig(path, format="svg", metadata={"Date": None})
    except OSError as error:
        raise UsageError(f"--profile {path}: {error.strerror}") from error
