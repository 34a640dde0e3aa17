"""`bench allreduce`: the rows.

Each time is that of a whole call, from the first rank's begin to the last rank's end, and each ratio is of
contenders that took turns in the same processes, on the same arrays and the same links.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from switchreduce.errors import UsageError
from switchreduce.sim.bench.allreduce import profile
from switchreduce.sim.bench.allreduce.fabric import Fabric, loopback, namespaces
from switchreduce.sim.bench.allreduce.plan import GLOO, Case, Contender, Tally, seconds
from switchreduce.sim.bench.allreduce.runner import (
    Found,
    gloo_is_missing,
    peak_memory,
    run_cases,
    save_case,
)
from switchreduce.sim.bench.gradients import Array, alike, independent
from switchreduce.sim.bench.measure import Settings
from switchreduce.sim.bench.rows import Missing, Row, Sample, Samples, Target, counted_row, timed_row
from switchreduce.sim.data import load_recorded_gradients
from switchreduce.sim.mininet.library import require_mininet
from switchreduce.sim.processes import exit_on_signals
from switchreduce.worker.warm import warm_up

PART = "allreduce"
MEGABYTE = 1e6
DENSITY = 0.05
RANKS, QUICK_RANKS = 4, 2
SIZE, QUICK_SIZE = 16 << 20, 1 << 18  # coordinates, float32
AUTO, FIXED = "auto", ("packed", "sketch", "dense")
BUILD = "jumbo2048"  # for loopback, veth pairs and jumbo frames
MEGABITS = 1000.0

PROFILED_CALLS = 15

# Scaling: links so slow that the network bounds the call and not the machine, on which all ranks share a few
# cores; packets so small that a slow link's queue (50 ms) holds many.
WORLD_SIZES = (2, 4, 8, 16)
SCALING_SIZE, SCALING_DENSITY = 1 << 20, 0.2
SCALING_BUILD = "wide256"
SCALING_MEGABITS = 20.0

AUTO_OVER_BEST = Target(0.9)
SCALING = Target(1.2, at_most=True)
MEMORY = Target(1, at_most=True)
MEMORY_FACTOR, MEMORY_EXTRA = 2.5, 64 << 20  # of the input's bytes; bytes


@dataclass(frozen=True)
class Subject:
    """A case of four ranks, and what `auto` should reach on it, as a multiple of the reference's speed."""

    name: str
    make: Callable[[], list[Array]]
    over_gloo: Target | None = None
    over_dense: Target | None = None


@dataclass(frozen=True)
class Results:
    """Tallies by case and contender, or why there are none of some contenders."""

    found: Found
    absent: dict[str, str]  # by codec
    nbytes: dict[str, int]  # by case, of a rank's array

    def of(self, case: str, codec: str) -> Samples:
        reason = self.absent.get(codec)
        if reason is not None:
            return Missing(reason)
        amount = self.nbytes[case] / MEGABYTE
        return [Sample(amount, each) for each in seconds(self.found[case][codec])]

    def details(self, case: str, codec: str) -> dict[str, float]:
        if codec in self.absent:
            return {}
        return _details(self.found[case][codec])


def _details(tallies: Sequence[Tally]) -> dict[str, float]:
    calls = len(tallies) * len(tallies[0].begun)
    packets = sum(each.packets_sent for each in tallies)
    details = {"CPU ms/rank": 1e3 * sum(each.cpu_seconds for each in tallies) / calls}
    if packets:
        details["sent MB"] = sum(each.bytes_sent for each in tallies) / calls / MEGABYTE
        details["again %"] = 100 * sum(each.retransmits for each in tallies) / packets
    return details


def run(settings: Settings) -> list[Row]:
    """The rows; megabytes are those of one rank's array, uncompressed. Raises SwitchReduceError."""
    with exit_on_signals():
        warm_up()  # compile the kernels once, here, rather than in each of the ranks at the same time
        rows = _loopback_rows(settings)
        absent = "a quick run leaves it out" if settings.quick else mininet_is_missing()
        rows += _shaped_rows(settings, absent)
        rows += _scaling_rows(settings, absent)
        if settings.profile is not None:
            _profile(settings, absent, settings.profile)
    return rows


def _profile(settings: Settings, absent: str, path: Path) -> None:
    places: dict[str, Callable[[], AbstractContextManager[Fabric]]] = {
        "loopback": lambda: loopback(QUICK_RANKS if settings.quick else RANKS, BUILD)
    }
    if not absent:
        places["1 Gbit/s"] = lambda: namespaces(RANKS, BUILD, MEGABITS)
    bars = []
    for place, start in places.items():
        with start() as fabric:
            for subject in _subjects(place, {}, settings.quick)[:2]:
                settings.say(f"profile: {subject.name}")
                bars += profile.profile(fabric, subject.name, subject.make(), PROFILED_CALLS, settings.say)
    print(profile.format_bars(bars))
    profile.draw(path, bars)


def mininet_is_missing() -> str:
    """Why no rank can be in a network namespace here; empty if it can."""
    try:
        require_mininet()
    except UsageError as error:
        return f"shaped links: {error}"
    return ""


# -- four ranks, against Gloo -----------------------------------------------------------------------


def _subjects(
    place: str, targets: Mapping[str, tuple[Target | None, Target | None]], quick: bool
) -> list[Subject]:
    ranks, size = (QUICK_RANKS, QUICK_SIZE) if quick else (RANKS, SIZE)
    makers: dict[str, Callable[[], list[Array]]] = {
        "alike": lambda: alike(ranks, size, DENSITY, seed=1),
        "independent": lambda: independent(ranks, size, DENSITY, seed=1),
        "MovieLens": lambda: [gradient.astype(np.float32) for gradient in load_recorded_gradients()[:ranks]],
    }
    return [
        Subject(f"{place} {name}", make, *targets.get(name, (None, None))) for name, make in makers.items()
    ]


def _loopback_rows(settings: Settings) -> list[Row]:
    ranks = QUICK_RANKS if settings.quick else RANKS
    subjects = _subjects(
        "loopback", {"alike": (Target(1), None), "independent": (Target(0.7), None)}, settings.quick
    )
    settings.say(f"loopback: starting switch, controller and {ranks} ranks")
    with loopback(ranks, BUILD) as fabric:
        results = _measure(fabric, subjects, settings)
        memory = _memory_row(fabric, subjects[0], settings)
    note = f"{ranks} ranks over loopback, {DENSITY:.0%} non-zero unless recorded, build {BUILD}"
    return [*compare(subjects, results, note), memory]


def _shaped_rows(settings: Settings, absent: str) -> list[Row]:
    targets = {"alike": (Target(6.33), Target(6.33)), "independent": (Target(4), None)}
    subjects = _subjects("1 Gbit/s", targets, settings.quick)
    if absent:
        results = Results({}, dict.fromkeys((GLOO, AUTO, *FIXED), absent), {})
    else:
        settings.say(f"1 Gbit/s: building links for {RANKS} ranks")
        with namespaces(RANKS, BUILD, MEGABITS) as fabric:
            results = _measure(fabric, subjects, settings)
    note = (
        f"{RANKS} ranks in network namespaces, a link of 1 Gbit/s each (TBF, both ways), both over the same "
        f"links, {DENSITY:.0%} non-zero unless recorded, build {BUILD}"
    )
    return compare(subjects, results, note)


def _measure(fabric: Fabric, subjects: Sequence[Subject], settings: Settings) -> Results:
    gloo_absent = gloo_is_missing()
    codecs = [AUTO, *FIXED] if gloo_absent else [GLOO, AUTO, *FIXED]
    nbytes = {}
    with tempfile.TemporaryDirectory(prefix="switchreduce-") as folder:
        cases = []
        for subject in subjects:
            arrays = subject.make()
            nbytes[subject.name] = arrays[0].nbytes
            contenders = [Contender(codec, len(fabric.places)) for codec in codecs]
            cases.append(save_case(subject.name, arrays, contenders, Path(folder)))
        found = _by_codec(run_cases(fabric, cases, settings.repetitions, settings.say), cases)
    return Results(found, {GLOO: gloo_absent} if gloo_absent else {}, nbytes)


def _by_codec(found: Found, cases: Sequence[Case]) -> Found:
    return {
        case.name: {each.codec: found[case.name][each.name] for each in case.contenders} for case in cases
    }


def compare(subjects: Sequence[Subject], results: Results, note: str) -> list[Row]:
    """The rows of ``subjects``."""
    rows = []
    for subject in subjects:
        place = Compared(results, subject.name, note)
        gloo = "torch.distributed's Gloo, float32 sum of the dense array"
        rows.append(place.row(AUTO, "Gloo", GLOO, gloo, subject.over_gloo))
        rows += [place.row(codec, "Gloo", GLOO, gloo, None) for codec in FIXED]
        if subject.over_dense is not None:
            own = "this project's own dense codec"
            rows.append(place.row(AUTO, "dense", "dense", own, subject.over_dense))
        best = _best(results, subject.name)
        label = "best fixed" if best in results.absent else f"best fixed, {best}"
        rows.append(place.row(AUTO, label, best, "the fastest fixed codec of the case", AUTO_OVER_BEST))
    return rows


@dataclass(frozen=True)
class Compared:
    """Makes the rows of one case."""

    results: Results
    case: str
    note: str

    def row(self, ours: str, label: str, theirs: str, against: str, target: Target | None) -> Row:
        details = dict(self.results.details(self.case, ours))
        for key, value in self.results.details(self.case, theirs).items():
            details[f"reference {key}"] = value
        return timed_row(
            PART, f"{self.case}: {ours} / {label}", "MB/s", self.results.of(self.case, ours),
            against, self.results.of(self.case, theirs), target, note=self.note, details=details,
        )  # fmt: skip


def _best(results: Results, case: str) -> str:
    """The fixed codec with the smallest median."""
    present = [codec for codec in FIXED if codec not in results.absent]
    if not present:
        return FIXED[0]
    return min(present, key=lambda codec: float(np.median(seconds(results.found[case][codec]))))


# -- memory -----------------------------------------------------------------------------------------


def _memory_row(fabric: Fabric, subject: Subject, settings: Settings) -> Row:
    settings.say("memory: a call with each codec, in fresh processes")
    arrays = subject.make()
    with tempfile.TemporaryDirectory(prefix="switchreduce-") as name:
        contenders = [Contender(codec, len(fabric.places)) for codec in (AUTO, *FIXED)]
        peak = peak_memory(fabric, save_case("memory", arrays, contenders, Path(name)), Path(name))
    limit = MEMORY_FACTOR * arrays[0].nbytes + MEMORY_EXTRA
    return counted_row(
        PART, "memory of a rank", "MB", peak / MEGABYTE,
        f"{MEMORY_FACTOR} times the array and {MEMORY_EXTRA >> 20} MB", limit / MEGABYTE, MEMORY,
        note="peak resident size beyond that before the array was there, the array included; the largest of "
        "the ranks', with each codec",
    )  # fmt: skip


# -- scaling ----------------------------------------------------------------------------------------


def _scaling_rows(settings: Settings, absent: str) -> list[Row]:
    name = f"{SCALING_MEGABITS:g} Mbit/s"
    tallies: dict[int, list[Tally]] = {}
    if not absent:
        settings.say(f"scaling: building links for {max(WORLD_SIZES)} ranks")
        arrays = alike(max(WORLD_SIZES), SCALING_SIZE, SCALING_DENSITY, seed=1)
        contenders = [Contender(AUTO, world_size) for world_size in WORLD_SIZES]
        with (
            tempfile.TemporaryDirectory(prefix="switchreduce-") as folder,
            namespaces(max(WORLD_SIZES), SCALING_BUILD, SCALING_MEGABITS) as fabric,
        ):
            case = save_case(name, arrays, contenders, Path(folder))
            found = run_cases(fabric, [case], settings.repetitions, settings.say)[name]
        tallies = {each.world_size: found[each.name] for each in contenders}
    return [_scaling_row(name, size, tallies, absent) for size in WORLD_SIZES[1:]]


def _scaling_row(name: str, world_size: int, tallies: dict[int, list[Tally]], absent: str) -> Row:
    """The time of ``world_size`` ranks over that of two."""
    label = f"{name}: {world_size} ranks / {WORLD_SIZES[0]} ranks"
    against = f"the time of {WORLD_SIZES[0]} ranks"
    note = (
        f"time of a call: {4 * SCALING_SIZE >> 20} MB of float32 a rank, {SCALING_DENSITY:.0%} non-zero, "
        f"supports alike, codec {AUTO}, build {SCALING_BUILD}; all ranks share this machine's cores"
    )
    if absent:
        return Row(PART, label, "ms", None, against, None, None, target=SCALING, note=note, missing=absent)
    ours, theirs = (np.array(seconds(tallies[size])) for size in (world_size, WORLD_SIZES[0]))
    low, ratio, high = (float(q) for q in np.quantile(ours / theirs, (0.25, 0.5, 0.75)))
    value, reference = float(np.median(ours)), float(np.median(theirs))
    return Row(
        part=PART, name=label, unit="ms", value=value * 1e3, against=against, reference=reference * 1e3,
        ratio=ratio, spread=(low, high), target=SCALING, seconds=value, reference_seconds=reference,
        repetitions=len(ours), note=note, details=_details(tallies[world_size]),
    )  # fmt: skip
