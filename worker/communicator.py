"""The API of a rank: join a job, then allreduce arrays through the switch."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from switchreduce import defaults, errors
from switchreduce.errors import (
    MismatchError,
    NonFiniteError,
    RankLostError,
    SwitchError,
    SwitchReduceError,
    UsageError,
)
from switchreduce.p4.builds import build_with_lanes, constants
from switchreduce.p4.packet import datagram_dtype
from switchreduce.worker import collective
from switchreduce.worker.agreement import Disagreement, Refused
from switchreduce.worker.caller import Caller
from switchreduce.worker.calls import Arrays, CallSpec, arrays_of, describe_call
from switchreduce.worker.membership import Membership
from switchreduce.worker.planner import MINIMISE
from switchreduce.worker.transport.engine import Segment, Session, SlotEngine
from switchreduce.worker.transport.udp import UdpLink, drive
from switchreduce.worker.warm import warm_up

HELLO_INTERVAL = 0.05  # s between hellos until the job runs
MAX_TIMEOUT = 1_000_000  # s; poll(2) takes up to 2^31 ms
WORD_LENGTH = 500  # characters of what a rank tells the others: as JSON, within what the controller keeps


@dataclass(frozen=True)
class CallReport:
    """What one call cost this rank."""

    bytes_sent: int  # UDP payload: lanes, slot headers and retransmissions
    packets_sent: int
    retransmits: int
    seconds: float
    codec: str  # that carried the values; of "auto", the one chosen


class Communicator:
    """One rank of a job. Use it from one thread; use it as a context manager, or close it.

    Calls must be made by all ranks in the same order, with arrays of the same shape and dtype. A call that
    fails because a rank refused it, the ranks disagreed or a sum overflowed leaves every array as it was
    and the communicator usable; after any other error the job is over.
    """

    @classmethod
    def connect(
        cls,
        controller: str = f"127.0.0.1:{defaults.CONTROLLER_PORT}",
        *,
        job: str,
        rank: int,
        world_size: int,
        slots: int = 0,
        timeout: float = defaults.JOIN_TIMEOUT,
        stall_timeout: float | None = None,
        minimise: str = "time",
    ) -> Communicator:
        """Join `job` through the controller at ``HOST:PORT`` and wait for all `world_size` ranks.

        `slots` is the number of switch slots wanted (0: the controller's default). `timeout`, in seconds,
        bounds the wait for the controller, for the ranks and, later, for any progress of a call; the last,
        `stall_timeout` bounds instead where it is given. Calls are made the fastest way by what earlier ones
        measured; with `minimise="bytes"`, which all ranks should give then, the smallest.

        Raises UsageError, ControllerError, MismatchError (world sizes differ), RankLostError (a rank did not
        come) or SwitchError (no way through the switch).
        """
        stall_timeout = timeout if stall_timeout is None else stall_timeout
        check_place(controller, job, rank, world_size, slots, timeout)
        check_timeout(stall_timeout)
        if minimise not in MINIMISE:
            raise UsageError(f"minimise {minimise!r} is unknown: choose from {', '.join(MINIMISE)}")
        # before others count on this rank: compiling takes seconds, and loading what was compiled can keep a
        # busy machine's heartbeats waiting
        warm_up()
        membership = Membership.join(
            controller, job=job, rank=rank, world_size=world_size, slots=slots, timeout=timeout
        )
        try:
            return cls(membership, rank, world_size, stall_timeout, minimise)
        except BaseException:
            membership.close()
            raise

    def __init__(
        self, membership: Membership, rank: int, world_size: int, timeout: float, minimise: str
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self._membership = membership
        self._timeout = timeout
        self._calls = 0  # begun, so the number of the next one
        self._finished = 0  # calls after which this rank needs nothing more from the others, nor they from it
        self._busy = threading.Lock()
        self._process = os.getpid()
        self._broken: SwitchReduceError | None = None
        self._network_seconds = 0.0  # outside the codec, in all calls
        invitation = membership.invitation
        build = build_with_lanes(invitation.lanes)
        self._link = UdpLink((invitation.data_host, invitation.data_port))
        try:
            slots = self._say_hello(build)
            session = Session(invitation.job_id, invitation.generation, rank, world_size, slots)
            self._engine = SlotEngine(session, build, collective.arena_rows(build.lanes))
            self._caller = Caller(self._engine, minimise)
        except BaseException:
            self._link.close()
            raise

    def _say_hello(self, build: Any) -> int:
        """Show the switch where this rank is until the controller says the job runs; returns its slots."""
        invitation = self._membership.invitation
        hello = np.zeros(1, datagram_dtype(build))
        hello["magic"] = constants.MAGIC
        hello["kind"] = constants.KIND_HELLO
        hello["lane_count"] = build.lanes
        hello["job"] = invitation.job_id
        hello["rank"] = self.rank
        hello["chunk"] = invitation.ticket
        hello["generation"] = invitation.generation
        while (ready := self._membership.wait_ready(HELLO_INTERVAL)) is None:
            self._link.send(hello)
            self._link.receive()
        return ready

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the job. The other ranks can still finish the calls that this rank has finished."""
        self._link.close()
        if self._process == os.getpid():  # a forked child is not the rank, and gRPC does not survive a fork
            self._membership.leave(self._finished)
        if self._broken is None:
            self._broken = UsageError("this communicator is closed")

    # -- calls --------------------------------------------------------------------------------------

    def allreduce(
        self, x: Arrays, op: str = "sum", codec: str = "auto", nonfinite: str = "raise"
    ) -> CallReport:
        """Replace `x` by its sum or mean over all ranks, in place.

        `x` is an array of float32, float64, int32, float16 or bfloat16 (ml_dtypes'), of any shape, or a list
        of arrays of one dtype, which travel as one stream; or a SparseArray, which then holds the result's
        rows, and costs what rows cost.

        `codec` is how values travel: "packed" (those that are not zero on some rank, in order), "sketch" (the
        same in a Count Sketch that always decodes, a sixth larger), "dense" (all), or "auto", which picks
        the fastest of these by what earlier calls measured. The result is the same with each of them: floats
        are summed in fixed point, with a quantum per block of 2^18 elements that the ranks' largest
        magnitude there sets; it is bit-identical on all ranks and within world_size / 2 quanta, plus one
        rounding to `x`'s dtype, of the real sum. An int32 sum is exact. With "exact", floats are not
        quantised: the result is the real sum or mean, rounded once. (The first such call on a machine
        compiles for some seconds.)

        NaN and infinity on some rank raise NonFiniteError, or with `nonfinite="propagate"` reach their place
        in the result on every rank, as in a float sum; the rest of the sum is as without them.

        Raises NonFiniteError, MismatchError (ranks make different calls) and SumOverflowError on every rank,
        with `x` as it was; RankLostError, SwitchError or ControllerError when the job is over.
        """
        if self._process != os.getpid():
            raise UsageError("this process was forked from the rank that joined: connect in it anew")
        if not self._busy.acquire(blocking=False):
            raise UsageError("another call of this communicator is under way: use it from one thread")
        try:
            return self._guarded_allreduce(x, op, codec, nonfinite)
        finally:
            self._busy.release()

    def _guarded_allreduce(self, x: Arrays, op: str, codec: str, nonfinite: str) -> CallReport:
        if self._broken is not None:
            raise self._broken
        started = time.perf_counter()
        stats = self._engine.stats
        before = (stats.bytes_sent, stats.sent, stats.retransmits)
        try:
            carried_by = self._allreduce(x, op, codec, nonfinite)
        except (NonFiniteError, MismatchError, UsageError, errors.SumOverflowError):
            self._finished = self._calls
            raise
        except SwitchReduceError as error:
            self._broken = error
            raise
        except BaseException:
            self._broken = UsageError("an earlier call was interrupted: connect again")
            raise
        self._finished = self._calls
        return CallReport(
            bytes_sent=stats.bytes_sent - before[0],
            packets_sent=stats.sent - before[1],
            retransmits=stats.retransmits - before[2],
            seconds=time.perf_counter() - started,
            codec=carried_by,
        )

    def _allreduce(self, x: Arrays, op: str, codec: str, nonfinite: str) -> str:
        # news that came during an earlier call may say that this one can never complete
        self._membership.check(self._calls)
        number = self._calls
        self._calls += 1
        spec = describe_call(number, arrays_of(x), op, codec, nonfinite)
        problem: SwitchReduceError | None = None
        try:
            call = self._caller.prepare(spec, x)
        except SwitchReduceError as error:
            problem = error
        if problem is not None:  # not in the handler: what the ranks agree on would be chained to it
            self._run_or_explain(self._caller.refuse(spec), spec, problem)
            raise problem
        seconds, packets = self._network_seconds, self._engine.stats.sent
        outcome = self._run_or_explain(self._caller.steps(call), spec, None)
        self._caller.learn(call, outcome, self._network_seconds - seconds, self._engine.stats.sent - packets)
        return str(outcome.codec)

    def _run_or_explain(
        self, steps: Generator[Segment | None, None, Any], spec: CallSpec, problem: SwitchReduceError | None
    ) -> Any:
        try:
            return self._run(steps)
        except (Refused, Disagreement):
            self._explain(spec, problem)

    def _run(self, steps: Generator[Segment | None, None, Any]) -> Any:
        while True:
            try:
                segment = next(steps)
            except StopIteration as finished:
                return finished.value
            if segment is None:
                if not self._engine.idle:  # else there is nothing to wait for
                    rounds = iter((False, True))
                    self._drive(lambda rounds=rounds: next(rounds))  # type: ignore[misc]
            elif not segment.done:
                self._drive(lambda segment=segment: segment.done)  # type: ignore[misc]

    def _drive(self, finished: Callable[[], bool]) -> None:
        started = time.perf_counter()
        drive(
            self._engine,
            self._link,
            finished,
            interrupt=self._membership.fileno(),
            on_interrupt=lambda: self._membership.check(self._calls - 1),
            stall_timeout=self._timeout,
            on_stall=self._stalled,
        )
        self._network_seconds += time.perf_counter() - started

    def _explain(self, spec: CallSpec, problem: SwitchReduceError | None) -> None:
        """Raise what the ranks' words about a failed call amount to; the same on every rank."""
        word = {"call": str(spec)[:WORD_LENGTH]}
        if problem is not None:
            word = {"error": type(problem).__name__, "message": str(problem)[:WORD_LENGTH]}
        words = {
            rank: json.loads(text)
            for rank, text in self._membership.explain(spec.number, json.dumps(word)).items()
        }
        for rank in sorted(words):
            if "error" in words[rank]:
                kind = getattr(errors, words[rank]["error"], MismatchError)
                raise kind(words[rank]["message"])
        raise MismatchError(disagreement({rank: word["call"] for rank, word in words.items()}))

    def _stalled(self) -> None:
        """No result for long: some rank does not take part, or the switch is not there."""
        self._membership.check(self._calls - 1)
        word = json.dumps({"call": f"waiting in call {self._calls - 1}"})
        answered = self._membership.explain(self._calls - 1, word)
        silent = [rank for rank in range(self.world_size) if rank not in answered]
        if silent:
            names = ", ".join(map(str, silent))
            raise RankLostError(
                f"no result of call {self._calls - 1} for {self._timeout:g} s: rank {names} did not take "
                "part, or began it later"
            )
        host, port = self._link.address
        raise SwitchError(
            f"no result from the switch at {host}:{port} for {self._timeout:g} s: is it running?"
        )


def check_place(controller: str, job: str, rank: int, world_size: int, slots: int, timeout: float) -> None:
    """Raise UsageError for what no controller could make sense of; the rest is the controller's to refuse."""
    host, _, port = controller.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UsageError(
            f"controller {controller!r} is not HOST:PORT like 127.0.0.1:{defaults.CONTROLLER_PORT}"
        )
    if not job.isprintable():
        raise UsageError(f"job {job!r} has characters that cannot be printed: choose another name")
    if world_size < 1 or not 0 <= rank < world_size:
        raise UsageError(f"rank {rank} is not in a world of {world_size}: ranks count from 0")
    if world_size > constants.MAX_RANKS:
        raise UsageError(f"world size {world_size} is too large: a job has 1 to {constants.MAX_RANKS} ranks")
    if not 0 <= slots <= constants.SLOTS:
        raise UsageError(f"{slots} slots cannot be had: ask for 1 to {constants.SLOTS}, or 0 for the default")
    check_timeout(timeout)


def check_timeout(timeout: float) -> None:
    """Raise UsageError for what no clock waits for."""
    if not 0 < timeout <= MAX_TIMEOUT:
        raise UsageError(f"timeout {timeout} is not a time in seconds above 0 and up to {MAX_TIMEOUT:,}")


def disagreement(calls: dict[int, str]) -> str:
    """One line about which ranks make which call."""
    by_call: dict[str, list[int]] = {}
    for rank, call in sorted(calls.items()):
        by_call.setdefault(call, []).append(rank)
    parts = [
        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}: {call}"
        for call, ranks in by_call.items()
    ]
    return f"the ranks make different calls: {'; '.join(parts)}"
