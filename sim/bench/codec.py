"""`bench codec`: encoding and decoding of one rank's array in one thread, against reading and writing it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from switchreduce.sim.bench.gradients import Array, sparse
from switchreduce.sim.bench.measure import Contender, Settings, cpu_time, in_turns
from switchreduce.sim.bench.rows import Row, Sample, Target, timed_row
from switchreduce.worker import codec
from switchreduce.worker.codec import BlockScale, Form, Plan, QuantisedBlock, Scan, Workspace

MEGABYTE = 1e6
BYTES, QUICK_BYTES = 64 << 20, 2 << 20
DENSITY = 0.05
WORLD_SIZE = 4

ENCODE = Target(0.5)
DECODE = {"packed": Target(0.3), "sketch": Target(0.15)}

Planner = Callable[[np.ndarray, int, int, Workspace], Plan]

# By form: how a block's plan is made of its union, and what that takes.
PLANNERS: dict[str, tuple[Planner, str]] = {
    "packed": (lambda union, size, limbs, _: codec.plan_packed(union, size, limbs), "nothing to search"),
    "sketch": (codec.plan_sketch, "search the seed, peel"),
}


@dataclass(frozen=True)
class Part:
    """One block of the array and what is known of it before its values are encoded."""

    values: Array
    scale: BlockScale
    quantised: QuantisedBlock


class Subject:
    """The array on its way through the codec; the timed functions do all blocks of it."""

    def __init__(self, size: int) -> None:
        self.x = sparse(size, DENSITY, seed=1)
        self.out = np.empty_like(self.x)
        self.workspace = Workspace()
        self.index = np.empty(codec.index_lanes(codec.BLOCK), np.uint32)
        self.lanes = np.empty(2 * codec.BLOCK, np.uint32)
        self.parts = []
        for part, scale in self._scaled(self.scan()):
            self.parts.append(Part(part, scale, codec.quantise(part, scale, workspace=self.workspace)))

    def scan(self) -> Scan:
        return codec.scan(self.x)

    def quantise(self) -> None:
        for part, scale in self._scaled(self.scan()):
            codec.quantise(part, scale, self._index(part), self.workspace)

    def unions(self) -> list[np.ndarray]:
        """Of each block, the union's coordinates; this rank's own, as all have the same support."""
        result = []
        for part in self.parts:
            search = codec.UnionSearch(part.quantised.index, part.values.size, codec.FLAT)
            search.read(part.quantised.index)
            result.append(search.coordinates)
        return result

    def plans(self, planner: Planner, unions: list[np.ndarray]) -> list[Plan]:
        return [
            planner(union, part.values.size, part.scale.limbs, self.workspace)
            for part, union in zip(self.parts, unions, strict=True)
        ]

    def encode(self, plans: list[Plan]) -> None:
        """Scan, quantise and encode, as a rank does; each block's lanes take the place of the last one's."""
        for (part, scale), plan in zip(self._scaled(self.scan()), plans, strict=True):
            quantised = codec.quantise(part, scale, self._index(part), self.workspace)
            codec.encode(quantised, plan, self.lanes[: plan.lanes])

    def decode(self, plans: list[Plan], lanes: list[np.ndarray]) -> None:
        """Uses up ``lanes``."""
        for number, (part, plan) in enumerate(zip(self.parts, plans, strict=True)):
            out = self.out[number * codec.BLOCK :][: part.values.size]
            codec.decode(lanes[number], plan, part.scale, out)

    def encoded(self, plans: list[Plan]) -> list[np.ndarray]:
        """By block, the lanes."""
        result = []
        for part, plan in zip(self.parts, plans, strict=True):
            result.append(np.empty(plan.lanes, np.uint32))
            codec.encode(part.quantised, plan, result[-1])
        return result

    def _scaled(self, scan: Scan) -> list[tuple[Array, BlockScale]]:
        return [
            (
                self.x[k * codec.BLOCK : (k + 1) * codec.BLOCK],
                BlockScale.from_key(self.x.dtype, int(key), WORLD_SIZE),
            )
            for k, key in enumerate(scan.keys)
        ]

    def _index(self, part: Array) -> np.ndarray:
        return self.index[: codec.index_lanes(part.size)]


def run(settings: Settings) -> list[Row]:
    """The rows; megabytes are those of the array, float32 and uncompressed."""
    codec.warm_up()
    subject = Subject((QUICK_BYTES if settings.quick else BYTES) // 4)
    megabytes = subject.x.nbytes / MEGABYTE
    unions = subject.unions()
    plans = {form: subject.plans(planner, unions) for form, (planner, _) in PLANNERS.items()}
    contenders: dict[str, Contender] = {
        "count": cpu_time(lambda: np.count_nonzero(subject.x), megabytes),
        "scan": cpu_time(subject.scan, megabytes),
        "quantise": cpu_time(subject.quantise, megabytes),
        "copy": cpu_time(lambda: np.copyto(subject.out, subject.x), megabytes),
        "union": cpu_time(subject.unions, megabytes),
    }
    for form, (planner, _) in PLANNERS.items():
        _check(subject, plans[form], form)
        contenders |= _contenders(subject, form, planner, plans[form], unions, megabytes)
    samples = in_turns(contenders, settings.repetitions, settings.say)
    size = f"{subject.x.nbytes >> 20} MB of float32, {1 - DENSITY:.0%} zeros, in blocks of {codec.BLOCK:,}"
    count, copy = f"numpy.count_nonzero of {size}", f"numpy.copyto of {size}"

    def row(name: str, against: str, target: Target | None, note: str) -> Row:
        reference = samples["count" if against is count else "copy"]
        return timed_row(
            "codec", name, "MB/s", samples[name], against, reference, target,
            note=note + " (CPU time of one thread)", details=_details(name, plans),
        )  # fmt: skip

    rows = [
        row("scan", count, None, "largest magnitude of each block and NaN check, the first part of encode"),
        row("quantise", count, None, "scan, index, coordinates and integers of the non-zeros"),
    ]
    for form in PLANNERS:
        note = "scan, quantise (index, coordinates, integers), lanes; with the plan known"
        rows.append(row(f"encode {form}", count, ENCODE, note))
    rows.append(row("union", copy, None, "from the flat index's sums to the union's coordinates"))
    for form, (_, what) in PLANNERS.items():
        rows.append(row(f"plan {form}", copy, None, f"from the union's coordinates to the plan: {what}"))
    for form in PLANNERS:
        rows.append(
            row(f"decode {form}", copy, DECODE[form], "from sums to the dense array, with the plan known")
        )
    for form in PLANNERS:
        rows.append(row(f"index to result {form}", copy, None, "union, plan and decode"))
    return rows


def _contenders(
    subject: Subject,
    form: str,
    planner: Planner,
    plans: list[Plan],
    unions: list[np.ndarray],
    megabytes: float,
) -> dict[str, Contender]:
    sums = subject.encoded(plans)

    def on_a_copy(work: Callable[[list[np.ndarray]], None]) -> Contender:
        """Decoding uses lanes up; copying them first is not timed."""

        def contender() -> Sample:
            lanes = [each.copy() for each in sums]
            return cpu_time(lambda: work(lanes), megabytes)()

        return contender

    def all_three(lanes: list[np.ndarray]) -> None:
        subject.decode(subject.plans(planner, subject.unions()), lanes)

    return {
        f"encode {form}": cpu_time(lambda: subject.encode(plans), megabytes),
        f"plan {form}": cpu_time(lambda: subject.plans(planner, unions), megabytes),
        f"decode {form}": on_a_copy(lambda lanes: subject.decode(plans, lanes)),
        f"index to result {form}": on_a_copy(all_three),
    }


def _check(subject: Subject, plans: list[Plan], form: str) -> None:
    """What is timed must be what its name says, and right."""
    found = {plan.form for plan in plans}
    if found != {Form(form)}:
        raise AssertionError(f"the plans for {form} have the forms {found}")
    subject.out[:] = np.nan
    subject.decode(plans, subject.encoded(plans))
    quanta = np.array([part.scale.quantum for part in subject.parts]).repeat(codec.BLOCK)[: subject.x.size]
    if not (np.abs(subject.out - subject.x) <= quanta / 2).all():
        raise AssertionError(f"{form} does not give the array back")


def _details(name: str, plans: dict[str, list[Plan]]) -> dict[str, float]:
    form = name.rpartition(" ")[2]
    if form not in plans:
        return {}
    return {"lanes/block": float(np.mean([plan.lanes for plan in plans[form]]))}
