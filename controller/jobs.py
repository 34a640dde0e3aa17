"""Job admission as a state machine without I/O: calls in, effects out, time is an argument.

A job goes from forming (ranks join, their hellos come through the switch) over admitting (its entries are
being written) to running, and ends for all ranks at once when something goes wrong or one by one as they
leave. Its share of the switch is free again when its last entry has been removed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from switchreduce import defaults
from switchreduce.controller import coordinator_pb2 as pb
from switchreduce.controller.entries import Location
from switchreduce.controller.model import (
    Answer,
    Call,
    Effect,
    Job,
    Member,
    Note,
    Send,
    State,
    Step,
    Timing,
    Write,
)
from switchreduce.controller.slots import Exhausted, Leases
from switchreduce.p4.builds import constants

NAME_LENGTH = 200  # characters of a job's name
REPORT_LENGTH = 4000  # characters kept of a rank's report
CALLS_KEPT = 16  # failed calls of a job whose reports are kept

# A process that did not run for this long (a suspended laptop, SIGSTOP) cannot hold others' silence in that
# time against them.
STALL = 1.0


@dataclass(frozen=True)
class Rules:
    """What the jobs of one switch have to go by."""

    max_ranks: int
    lanes: int
    data_address: tuple[str, int]
    timing: Timing


class Jobs:
    """All jobs of one switch. After every call, `take_effects` says what is to be done."""

    def __init__(
        self, rules: Rules, leases: Leases, random_bits: Callable[[int], int] = secrets.randbits
    ) -> None:
        self.rules = rules
        self.leases = leases
        self.switch_fault: str | None = "the switch is not connected yet"
        self._random_bits = random_bits
        self._by_generation: dict[int, Job] = {}
        self._by_name: dict[str, Job] = {}  # the incarnation that ranks join, if any
        self._effects: list[Effect] = []
        self._last_tick: float | None = None

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._by_generation.values()))

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    # Ranks

    def join(self, request: pb.JoinRequest, now: float) -> Member:
        """A process asks to be rank `request.rank` of a job; what comes of it is sent to the member."""
        member = Member(
            rank=request.rank,
            ticket=self._random_bits(32),
            host=request.host or "unknown host",
            pid=request.pid,
            heard=now,
        )
        job = self._by_name.get(request.job)
        if fault := self._fault_of(request):
            self._send_ended(member, pb.Ended.REFUSED, [member.rank], fault)
        elif self.switch_fault is not None:
            self._send_ended(member, pb.Ended.SWITCH_LOST, [], self.switch_fault)
        elif job is None or (job.state is not State.FORMING and self._has_left(job, member.rank)):
            self._found(request, member, now)
        elif job.state is not State.FORMING:
            here = ", ".join(str(m) for m in job.present)
            self._refuse(
                member, f"job {job.name!r} is running with {here}: take another name, or wait for it"
            )
        elif request.world_size != job.world_size:
            says = "; ".join(f"{m} says {job.world_size}" for m in job.present)
            message = (
                f"ranks of job {job.name!r} disagree about the world size: {says}; {member} says "
                f"{request.world_size}"
            )
            self._send_ended(member, pb.Ended.MISMATCH, [member.rank], message)
            self._end(job, pb.Ended.MISMATCH, [member.rank], message)
        elif member.rank in job.members:
            holder = job.members[member.rank]
            self._refuse(
                member, f"rank {member.rank} of job {job.name!r} has joined already, from {holder.host}, pid "
                f"{holder.pid}: give every process its own rank"
            )  # fmt: skip
        else:
            self._add(job, member, request, now)
        return member

    def hello_seen(
        self, job_id: int, generation: int, rank: int, ticket: int, location: Location
    ) -> bool:  # fmt: skip
        """A hello came through the switch. False if it is none of ours: then nothing is learned from it."""
        job = self._by_generation.get(generation)
        if job is None or job.state is not State.FORMING or job.lease.job_id != job_id:
            return False
        member = job.members.get(rank)
        if member is None or member.ticket != ticket:
            return False
        member.location = location
        locations = [m.location for _, m in sorted(job.members.items()) if m.location is not None]
        if len(locations) == job.world_size:
            self._admit(job, tuple(locations))
        return True

    def heartbeat(self, who: pb.Member, now: float) -> bool:
        """False if there is no such member (any more)."""
        found = self._find(who)
        if found is None:
            return False
        found[1].heard = now
        return True

    def leave(self, who: pb.Member, calls: int, now: float) -> bool:
        """A rank needs no more results, having finished `calls` collective calls. False as in heartbeat."""
        found = self._find(who)
        if found is None:
            return False
        job, member = found
        self._send_ended(member, pb.Ended.FINISHED, [], f"{member} left job {job.name!r}")
        if job.state is State.FORMING:
            del job.members[member.rank]
            job.hello_deadline = None
        else:
            member.departed = True
            text = f"{member} left job {job.name!r} after {calls} calls"
            departed = pb.Departed(rank=member.rank, calls=calls, message=text)
            for other in job.present:
                self._effects.append(Send(other, pb.Event(departed=departed)))
        if not job.present:
            self._note(f"job {job.name!r} is over: every rank has left")
            self._close(job)
        self._answer_calls(job, now)
        return True

    def stream_broken(self, member: Member) -> None:
        """The member's stream ended from its side."""
        if member.ended:
            return
        member.ended = True
        for job in self:
            if member in job.members.values():
                message = f"{member} of job {job.name!r} died: its connection to the controller broke"
                self._end(job, pb.Ended.RANK_LOST, [member.rank], message)

    def report(self, who: pb.Member, call: int, text: str, token: Hashable, now: float) -> bool:
        """A rank says how a failed call looked to it; an Answer follows. False as in heartbeat."""
        found = self._find(who)
        if found is None:
            return False
        job, member = found
        record = job.calls.setdefault(call, Call())
        record.texts[member.rank] = text[:REPORT_LENGTH]
        record.waiting.append((now + self.rules.timing.explain_timeout, token))
        self._answer_calls(job, now)
        while len(job.calls) > CALLS_KEPT:
            self._answer(job.calls.pop(min(job.calls)))
        return True

    # Time and the switch

    def tick(self, now: float) -> None:
        """To be called often; ends what has waited too long."""
        if self._last_tick is not None and now - self._last_tick > STALL:
            for job in self:
                for member in job.present:
                    member.heard += now - self._last_tick
        self._last_tick = now
        for job in self:
            self._answer_calls(job, now)
            if job.state is not State.ENDING:
                self._check_silence(job, now)
            if job.state is State.FORMING:
                self._check_forming(job, now)

    def switch_connected(self) -> None:
        """The switch runs the program and holds no job's entries."""
        self.switch_fault = None

    def switch_lost(self, message: str) -> None:
        """The switch is gone, and with it every entry: jobs end, and later joins hear why."""
        self.switch_fault = message
        for job in self:
            self._end(job, pb.Ended.SWITCH_LOST, [], message)
            self._release(job)
        self._effects = [effect for effect in self._effects if not isinstance(effect, Write)]

    def shut_down(self, message: str) -> None:
        for job in self:
            self._end(job, pb.Ended.SHUTDOWN, [], message)

    def written(self, write: Write, now: float) -> None:
        """The switch carried out `write`."""
        job = write.job
        if write.step is Step.OPEN:
            job.opened = True
            for member in job.present:
                self._invite(job, member, now)
        elif write.step is Step.CLOSE:
            self._release(job)
        elif job.state is State.ADMITTING:
            job.state = State.RUNNING
            slots = job.lease.slots
            self._note(
                f"job {job.name!r} runs: {job.world_size} ranks, slots {slots.start} to {slots.stop - 1}"
            )
            ready = pb.Ready(slots=len(job.lease.slots))
            for member in job.present:
                self._effects.append(Send(member, pb.Event(ready=ready)))

    def write_failed(self, write: Write, message: str) -> None:
        """The switch refused part of `write`, which did not close the job."""
        write.job.write_failed = True
        text = f"the switch refused the entries of job {write.job.name!r}: {message}"
        self._end(write.job, pb.Ended.SWITCH_LOST, [], text)

    # Steps

    def _fault_of(self, request: pb.JoinRequest) -> str | None:
        if not 0 < len(request.job) <= NAME_LENGTH:
            return f"a job's name has 1 to {NAME_LENGTH} characters"
        if not 0 < request.world_size <= self.rules.max_ranks:
            return f"the world size is 1 to {self.rules.max_ranks} on this switch, not {request.world_size}"
        if request.rank >= request.world_size:
            return f"rank {request.rank} is out of range: ranks are 0 to {request.world_size - 1}"
        return None

    def _has_left(self, job: Job, rank: int) -> bool:
        """A rank that left in good order and is back wants the job's next incarnation."""
        return rank in job.members and job.members[rank].departed

    def _found(self, request: pb.JoinRequest, member: Member, now: float) -> None:
        """The first rank of a new incarnation."""
        try:
            wanted = request.slots or defaults.SLOTS_WANTED
            lease = self.leases.take(request.world_size, wanted, request.job)
        except Exhausted as error:
            self._refuse(member, f"the switch has no room for job {request.job!r}: {error}")
            return
        job = Job(
            name=request.job,
            generation=self._new_generation(),
            world_size=request.world_size,
            lease=lease,
            join_deadline=float("inf"),
        )
        self._by_generation[job.generation] = job
        self._by_name[job.name] = job
        self._effects.append(Write(job, Step.OPEN))
        self._add(job, member, request, now)

    def _add(self, job: Job, member: Member, request: pb.JoinRequest, now: float) -> None:
        job.members[member.rank] = member
        patience = request.join_timeout if request.join_timeout > 0 else self.rules.timing.join_timeout
        job.join_deadline = min(job.join_deadline, now + patience)
        if not job.missing:
            job.hello_deadline = now + self.rules.timing.hello_timeout
        if job.opened:
            self._invite(job, member, now)

    def _invite(self, job: Job, member: Member, now: float) -> None:
        if member.invited:
            return
        member.invited = True
        member.heard = now
        host, port = self.rules.data_address
        invitation = pb.Invitation(
            job_id=job.lease.job_id,
            generation=job.generation,
            ticket=member.ticket,
            data_host=host,
            data_port=port,
            lanes=self.rules.lanes,
            heartbeat_interval=self.rules.timing.heartbeat_interval,
        )
        self._effects.append(Send(member, pb.Event(invitation=invitation)))

    def _admit(self, job: Job, locations: tuple[Location, ...]) -> None:
        job.state = State.ADMITTING
        job.admitted = locations
        self._effects.append(Write(job, Step.ADMIT))

    def _check_silence(self, job: Job, now: float) -> None:
        limit = self.rules.timing.heartbeat_timeout
        silent = [m for m in job.present if m.invited and now - m.heard > limit]
        if silent:
            names = ", ".join(str(member) for member in silent)
            message = f"{names} of job {job.name!r} fell silent: no heartbeat for {limit:g} s"
            self._end(job, pb.Ended.RANK_LOST, [member.rank for member in silent], message)

    def _check_forming(self, job: Job, now: float) -> None:
        if job.missing and now >= job.join_deadline:
            here = ", ".join(str(member) for member in job.present)
            missing = ", ".join(str(rank) for rank in job.missing)
            message = (
                f"rank {missing} of job {job.name!r} never joined (world size {job.world_size}; here: {here})"
            )
            self._end(job, pb.Ended.NEVER_JOINED, job.missing, message)
        elif job.hello_deadline is not None and now >= job.hello_deadline:
            unseen = [member for member in job.present if member.location is None]
            names = ", ".join(str(member) for member in unseen)
            host, port = self.rules.data_address
            message = (
                f"no packet of {names} came through the switch to the controller: check that UDP from there "
                f"reaches {host}:{port}, that the path's MTU lets packets of {self.rules.lanes} lanes "
                f"({4 * self.rules.lanes} bytes and headers) pass, and that the switch was started with "
                f"--cpu-port {constants.CPU_PORT}"
            )
            self._end(job, pb.Ended.UNREACHABLE, [member.rank for member in unseen], message)

    def _end(self, job: Job, cause: int, ranks: list[int], message: str) -> None:
        """Ends the job for everyone who is still there."""
        if job.state is State.ENDING:
            return
        self._note(f"job {job.name!r} is over: {message}")
        for member in job.present:
            self._send_ended(member, cause, ranks, message)
        self._close(job)

    def _close(self, job: Job) -> None:
        for call in job.calls.values():
            self._answer(call)
        job.calls.clear()
        job.state = State.ENDING
        if self._by_name.get(job.name) is job:
            del self._by_name[job.name]
        self._effects.append(Write(job, Step.CLOSE))

    def _release(self, job: Job) -> None:
        if self._by_generation.pop(job.generation, None) is not None:
            self.leases.give_back(job.lease)

    def _answer_calls(self, job: Job, now: float) -> None:
        """Answers reports on calls of which all present ranks have spoken, or that have waited long."""
        present = {member.rank for member in job.present}
        for call in job.calls.values():
            if present <= call.texts.keys():
                self._answer(call)
            for deadline, token in [waiting for waiting in call.waiting if waiting[0] <= now]:
                self._effects.append(Answer(token, dict(call.texts)))
                call.waiting.remove((deadline, token))

    def _answer(self, call: Call) -> None:
        for _, token in call.waiting:
            self._effects.append(Answer(token, dict(call.texts)))
        call.waiting.clear()

    def _refuse(self, member: Member, message: str) -> None:
        self._send_ended(member, pb.Ended.REFUSED, [member.rank], message)

    def _send_ended(self, member: Member, cause: int, ranks: list[int], message: str) -> None:
        member.ended = True
        ended = pb.Ended(cause=cause, ranks=ranks, message=message)  # type: ignore[arg-type]
        self._effects.append(Send(member, pb.Event(ended=ended)))

    def _note(self, text: str) -> None:
        self._effects.append(Note(text))

    def _find(self, who: pb.Member) -> tuple[Job, Member] | None:
        job = self._by_generation.get(who.generation)
        if job is None or job.name != who.job:
            return None
        member = job.members.get(who.rank)
        if member is None or member.ticket != who.ticket or member.ended:
            return None
        return job, member

    def _new_generation(self) -> int:
        """Random, so that no register in any switch can hold it by chance; never 0, as registers start so."""
        while True:
            generation = self._random_bits(64)
            if generation != 0 and generation not in self._by_generation:
                return generation
