"""A rank's calls without a socket or a clock: from arguments to steps, and what one call teaches the next."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from switchreduce.errors import NonFiniteError, UsageError
from switchreduce.worker.agreement import Disagreement, Offer, Refused, refuse
from switchreduce.worker.blocks import PieceSender
from switchreduce.worker.calls import Arrays, CallSpec, arrays_of, check_arguments
from switchreduce.worker.codec import Scan, Workspace
from switchreduce.worker.collective import Call, Foresight, Outcome
from switchreduce.worker.pipeline import Steps
from switchreduce.worker.planner import Planner
from switchreduce.worker.sparse import SparseArray, SparseStream
from switchreduce.worker.stream import NO_MARKS, Marks, Stream, set_aside_nonfinite
from switchreduce.worker.transport.engine import Segment, SlotEngine


@dataclass(frozen=True)
class Prepared:
    """A call that nothing on this rank alone can make fail any more."""

    spec: CallSpec
    arrays: list[Any]  # as the caller gave them
    stream: Stream | SparseStream
    offer: Offer
    marks: Marks


class Caller:
    """One rank's calls over `engine`, one at a time; ranks that make the same calls stay in step."""

    def __init__(self, engine: SlotEngine, minimise: str = "time") -> None:
        self._engine = engine
        self._rank = engine.session.rank
        self._world_size = engine.session.world_size
        self._workspace = Workspace()
        self._planner = Planner(self._world_size, minimise)
        self._foresight = Foresight()

    def prepare(self, spec: CallSpec, x: Arrays) -> Prepared:
        """Check and scan `x`. Raises UsageError or NonFiniteError, whereupon the rank must `refuse`."""
        problem = check_arguments(x, spec)
        if problem is not None:
            raise problem
        arrays = arrays_of(x)
        marks = NO_MARKS
        try:
            stream = stream_of(arrays)
            scan = self._scan(spec, stream)
            if scan.first_nonfinite >= 0 and spec.nonfinite == "propagate":
                stream, marks = finite_stream_of(arrays)
                scan = self._scan(spec, stream)
        except MemoryError:
            size = sum(array.nbytes for array in arrays)
            raise UsageError(
                f"rank {self._rank} has no memory for a copy of {size:,} bytes: sum smaller arrays"
            ) from None
        if scan.first_nonfinite >= 0:
            array, index = stream.locate(scan.first_nonfinite)
            which = f" of array {array}" if len(arrays) > 1 else ""
            value = float(stream.values(scan.first_nonfinite, scan.first_nonfinite + 1)[0])
            raise NonFiniteError(f"rank {self._rank} has {value} at index {index}{which}; nothing was sent")
        way, nonzeros = self._planner.vote(spec, stream, self._engine.round_trip.shortest)
        offer = Offer(scan.keys, way, nonzeros, nonfinite=marks is not NO_MARKS)
        return Prepared(spec, arrays, stream, offer, marks)

    def _scan(self, spec: CallSpec, stream: Stream | SparseStream) -> Scan:
        is_exact = spec.codec == "exact" and stream.dtype.kind != "i"
        return stream.scan_exact(self._world_size) if is_exact else stream.scan()

    def steps(self, call: Prepared) -> Generator[Segment | None, None, Outcome]:
        """Replace the call's arrays by their sum or mean over ranks.

        Raises Disagreement, Refused or SumOverflowError, the same on every rank, with all arrays as they were
        and the ranks in step for the next call.
        """
        spec = call.spec
        sender = PieceSender(self._engine, call.stream, spec.op, self._workspace)  # type: ignore[arg-type]
        foreseen = self._foresight.get(spec.kind)
        steps = Call(self._engine, spec, self._world_size, call.stream, sender, foreseen)
        outcome: Outcome = yield from self._in_step(steps.steps(call.offer, call.marks))
        self._foresight.put(spec.kind, outcome)
        call.stream.write_back(sender.results, sender.special, call.arrays)
        return outcome

    def refuse(self, spec: CallSpec) -> Steps:
        """Take part in a call only to say that this rank cannot make it. Raises Refused or Disagreement."""
        yield from self._in_step(refuse(self._engine, spec))

    def _in_step(self, steps: Generator[Segment | None, None, Any]) -> Generator[Segment | None, None, Any]:
        first = self._engine.next_chunk
        try:
            return (yield from steps)
        except (Disagreement, Refused):
            self._engine.abandon(first)
            raise

    def learn(self, call: Prepared, outcome: Outcome, network_seconds: float, packets: int) -> None:
        """Take what a call showed: the time that it spent outside the codec and the packets it sent."""
        lanes = packets * self._engine.lanes
        size = call.stream.size
        self._planner.learn(call.spec, outcome.agreed, outcome.union, size, network_seconds, lanes)


def stream_of(arrays: list[Any]) -> Stream | SparseStream:
    """The arrays of a call, or the sparse one, as one run of coordinates."""
    return SparseStream(arrays[0]) if isinstance(arrays[0], SparseArray) else Stream(arrays)


def finite_stream_of(arrays: list[Any]) -> tuple[Stream | SparseStream, Marks]:
    """(the same of a copy with 0 where it is not finite, where that was)."""
    if isinstance(arrays[0], SparseArray):
        sparse, marks = arrays[0].set_aside_nonfinite()
        return SparseStream(sparse), marks
    finite, marks = set_aside_nonfinite(arrays)
    return Stream(finite), marks
