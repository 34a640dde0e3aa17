"""`bench switch`: the aggregation program on BMv2 and on the embedded switch, with the same packets.

Four ranks contribute SUM chunks as in real use; a chunk's four contributions go in and its four results come
out. The figures are contributions a second.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from switchreduce.errors import UsageError
from switchreduce.p4.builds import Build, build_names, load_build
from switchreduce.sim.bench.contributions import RANKS, lane_bytes
from switchreduce.sim.bench.in_process import BareAdd, InProcess
from switchreduce.sim.bench.measure import Contender, Settings, in_turns
from switchreduce.sim.bench.on_bmv2 import IN_FLIGHT, Bmv2, running_bmv2
from switchreduce.sim.bench.over_udp import Client, Server, embedded_switch, plain_echo
from switchreduce.sim.bench.report import BMV2
from switchreduce.sim.bench.rows import Missing, Row, Sample, Samples, Target, timed_row
from switchreduce.sim.mininet.library import require_mininet
from switchreduce.sim.processes import Process
from switchreduce.sim.target import Switch, load_program

UNIT = "packets/s"
MEGABYTE = 1e6

WIDE_OVER_NARROW = Target(4)
JUMBO_MB_S = 50.0  # of contributions, on BMv2
UDP_OVER_BMV2 = {"wide256": Target(50), "narrow256": Target(200)}
UDP_OVER_ECHO = Target(0.5)
IN_PROCESS_OVER_BMV2 = {"wide256": Target(100)}
IN_PROCESS_OVER_ADD = Target(0.25)

# Lane bytes that a repetition moves, so that it takes a good part of a second.
BMV2_BYTES = {"wide256": 8e6, "narrow256": 2e6, "jumbo2048": 20e6}
UDP_BYTES = 400e6
IN_PROCESS_BYTES = 200e6
ADD_BYTES = 800e6
QUICK_SHARE = 1e-3
QUICK_BUILDS = ("wide256",)


def run(settings: Settings) -> list[Row]:
    """The rows; those with BMv2 need root, Mininet and BMv2, and else say what is missing."""
    builds = [load_build(name) for name in (QUICK_BUILDS if settings.quick else build_names())]
    absent = bmv2_is_missing()
    with ExitStack() as stack:
        echo = stack.enter_context(plain_echo())
        meters: dict[str, Meter] = {}
        for number, build in enumerate(builds):
            settings.say(f"starting the embedded switch with {build.name}")
            of_build = _embedded(build, echo, settings, stack)
            if not absent:
                settings.say(f"starting BMv2 with {build.name}")
                of_build[f"BMv2 {build.name}"] = _bmv2(build, settings, stack)
            # every second build in reverse: then those of two builds on BMv2 are neighbours in time too
            meters |= of_build if number % 2 == 0 else dict(reversed(of_build.items()))
        samples = in_turns(
            {name: meter.take for name, meter in meters.items()}, settings.repetitions, settings.say
        )
        return _rows(Results(samples, meters, absent or "a quick run leaves it out"), builds)


def bmv2_is_missing() -> str:
    """Why BMv2 cannot be measured here; empty if it can."""
    if shutil.which(BMV2) is None:
        return f"BMv2: there is no {BMV2} on PATH"
    try:
        require_mininet()
    except UsageError as error:
        return f"BMv2: {error}"
    return ""


@dataclass
class Meter:
    """A contender, and the CPU time of the process behind it."""

    once: Contender
    process: Process | None = None
    bmv2: Bmv2 | None = None
    cpu_seconds: float = 0.0
    packets: float = 0.0

    def take(self) -> Sample:
        before = _cpu_seconds(self.process)
        sample = self.once()
        self.cpu_seconds += sample.seconds if self.process is None else _cpu_seconds(self.process) - before
        self.packets += sample.amount
        return sample


def _cpu_seconds(process: Process | None) -> float:
    """What all threads of a process have used. proc(5): schedstat's first figure, nanoseconds."""
    if process is None:
        return 0.0
    tasks = Path(f"/proc/{process.pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


def _times(total_bytes: float, bytes_each: float, settings: Settings) -> int:
    share = QUICK_SHARE if settings.quick else 1.0
    return max(1, round(share * total_bytes / bytes_each))


def _embedded(build: Build, echo: Server, settings: Settings, stack: ExitStack) -> dict[str, Meter]:
    """The contenders of a build that need no BMv2."""
    switch = Switch(load_program(build.json_path), progress=settings.say)
    inside = InProcess(switch, build)
    add = BareAdd(inside.lanes)
    batch_bytes = inside.packets * lane_bytes(build)
    client = Client(build)
    stack.callback(client.close)
    served = stack.enter_context(embedded_switch(build, client))
    round_bytes = client.burst * RANKS * lane_bytes(build)
    batches, adds, rounds = (
        _times(total, each, settings)
        for total, each in (
            (IN_PROCESS_BYTES, batch_bytes), (ADD_BYTES, batch_bytes), (UDP_BYTES, round_bytes),
        )
    )  # fmt: skip

    def over_udp(server: Server) -> Meter:
        return Meter(lambda: client.exchange(server.address, rounds), server.process)

    return {
        f"in process {build.name}": Meter(lambda: inside.run(batches)),
        f"add {build.name}": Meter(lambda: add.run(adds)),
        f"echo {build.name}": over_udp(echo),
        f"UDP {build.name}": over_udp(served),
    }


def _bmv2(build: Build, settings: Settings, stack: ExitStack) -> Meter:
    bmv2 = stack.enter_context(running_bmv2(build))
    chunks = _times(BMV2_BYTES[build.name], RANKS * lane_bytes(build), settings)
    return Meter(lambda: bmv2.exchange(chunks), bmv2.process, bmv2)


@dataclass(frozen=True)
class Results:
    """Samples by contender, and why those of BMv2 are not there."""

    samples: dict[str, list[Sample]]
    meters: dict[str, Meter]
    absent: str

    def of(self, name: str) -> Samples:
        return self.samples[name] if name in self.samples else Missing(self.absent)

    def row(
        self, name: str, value: str, against: str, reference: str, build: Build, target: Target | None,
        note: str = "", reference_build: Build | None = None,
    ) -> Row:  # fmt: skip
        return timed_row(
            "switch", name, UNIT, self.of(value), against, self.of(reference), target,
            note=note, details=self._details(value, reference, build, reference_build or build),
        )  # fmt: skip

    def _details(self, value: str, reference: str, build: Build, reference_build: Build) -> dict[str, float]:
        """Lane megabytes a second and CPU time a packet of both."""
        details: dict[str, float] = {}
        for label, name, its_build in (("", value, build), ("reference ", reference, reference_build)):
            if name in self.meters:
                rates = sorted(sample.rate for sample in self.samples[name])
                meter = self.meters[name]
                details[f"{label}MB/s"] = rates[len(rates) // 2] * lane_bytes(its_build) / MEGABYTE
                details[f"{label}CPU ns/packet"] = meter.cpu_seconds / meter.packets * 1e9
                if meter.bmv2 is not None and meter.bmv2.resent:
                    details[f"{label}sent again %"] = 100 * meter.bmv2.resent / meter.packets
        return details


def _rows(results: Results, builds: list[Build]) -> list[Row]:
    wide, narrow, jumbo = (load_build(name) for name in ("wide256", "narrow256", "jumbo2048"))
    veth = f"veth pairs, {IN_FLIGHT} contributions in flight"
    rows = [
        results.row(
            "BMv2: wide256 / narrow256", "BMv2 wide256", "BMv2 with narrow256", "BMv2 narrow256",
            wide, WIDE_OVER_NARROW, f"both over {veth}", narrow,
        ),
        _jumbo_row(results, jumbo, veth),
    ]  # fmt: skip
    for build in builds:
        bmv2 = f"BMv2 {build.name}"
        rows += [
            results.row(
                f"UDP {build.name} / BMv2", f"UDP {build.name}", f"BMv2 over {veth}", bmv2,
                build, UDP_OVER_BMV2.get(build.name), "`switchreduce switch` over UDP sockets",
            ),
            results.row(
                f"UDP {build.name} / echo", f"UDP {build.name}",
                "a plain echo of the same packets, UDP_GRO and UDP_SEGMENT", f"echo {build.name}",
                build, UDP_OVER_ECHO, "`switchreduce switch` over UDP sockets",
            ),
            results.row(
                f"in process {build.name} / BMv2", f"in process {build.name}", f"BMv2 over {veth}", bmv2,
                build, IN_PROCESS_OVER_BMV2.get(build.name), "no sockets, CPU time of one thread",
            ),
            results.row(
                f"in process {build.name} / add", f"in process {build.name}",
                "NumPy's bare add of the same lanes", f"add {build.name}",
                build, IN_PROCESS_OVER_ADD, "no sockets, CPU time of one thread",
            ),
        ]  # fmt: skip
    return rows


def _jumbo_row(results: Results, build: Build, veth: str) -> Row:
    name = f"BMv2 {build.name}"
    samples = results.of(name)
    floor: Samples = samples if isinstance(samples, Missing) else [Sample(JUMBO_MB_S, 1.0)] * len(samples)
    if not isinstance(samples, Missing):
        samples = [Sample(s.amount * lane_bytes(build) / MEGABYTE, s.seconds) for s in samples]
    return timed_row(
        "switch", "BMv2: jumbo2048 / 50 MB/s", "MB/s", samples, "a fixed figure", floor, Target(1),
        note=f"lane bytes of contributions over {veth}",
    )  # fmt: skip
