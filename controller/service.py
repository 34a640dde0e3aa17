"""The gRPC service that workers join through: carries calls to the state machine and its effects out.

Everything runs in one asyncio loop, so open streams cost no threads and the state machine needs no lock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn

import grpc

from switchreduce.controller import coordinator_pb2 as pb
from switchreduce.controller import coordinator_pb2_grpc, hello
from switchreduce.controller.entities import MatchValue, format_address
from switchreduce.controller.hosts import HostTable
from switchreduce.controller.jobs import Jobs
from switchreduce.controller.model import Answer, Job, Member, Note, Send, Step, Write
from switchreduce.controller.switch_link import Order, SwitchLink
from switchreduce.errors import SwitchError
from switchreduce.p4.builds import Build, constants

TICK = 0.1  # seconds between looks at the clock

log = logging.getLogger(__name__)


class CoordinatorService(coordinator_pb2_grpc.CoordinatorServicer):
    """One controller's jobs, ranks and switch. Set `link` before the first call."""

    link: SwitchLink

    def __init__(self, build: Build, jobs: Jobs, hosts: HostTable) -> None:
        self._build = build
        self._jobs = jobs
        self._hosts = hosts
        self._streams: dict[Member, asyncio.Queue[pb.Event]] = {}

    async def tick(self) -> NoReturn:
        """Keeps the state machine's time."""
        while True:
            await asyncio.sleep(TICK)
            self._jobs.tick(time.monotonic())
            self._perform()

    def shut_down(self) -> None:
        self._jobs.shut_down("the controller was stopped")
        self._perform()

    # What workers call

    async def Join(self, request: pb.JoinRequest, context: Any) -> None:
        member = self._jobs.join(request, time.monotonic())
        events = self._streams[member] = asyncio.Queue()
        self._perform()
        try:
            while True:
                event = await events.get()
                await context.write(event)
                if event.HasField("ended"):
                    return
        finally:
            del self._streams[member]
            self._jobs.stream_broken(member)
            self._perform()

    async def Heartbeat(self, request: pb.Member, context: Any) -> pb.HeartbeatReply:
        if not self._jobs.heartbeat(request, time.monotonic()):
            await _abort_unknown(request, context)
        return pb.HeartbeatReply()

    async def Leave(self, request: pb.LeaveRequest, context: Any) -> pb.LeaveReply:
        if not self._jobs.leave(request.member, request.calls, time.monotonic()):
            await _abort_unknown(request.member, context)
        self._perform()
        return pb.LeaveReply()

    async def Explain(self, request: pb.Report, context: Any) -> pb.Reports:
        answer: asyncio.Future[dict[int, str]] = asyncio.get_running_loop().create_future()
        known = self._jobs.report(request.member, request.call, request.text, answer, time.monotonic())
        if not known:
            await _abort_unknown(request.member, context)
        self._perform()
        return pb.Reports(by_rank=await answer)

    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusReply:
        packets: dict[tuple[MatchValue, ...], int] = {}
        drops: dict[str, int] = {}
        try:
            for entry in await self.link.read_table("SwitchIngress.admission.members"):
                packets[entry.match["job"], entry.match["generation"], entry.match["rank"]] = (
                    entry.packets or 0
                )
            counted = await self.link.read_counter("SwitchIngress.drops")
            drops = {reason: counted.get(index, 0) for reason, index in drop_reasons().items()}
        except SwitchError as error:
            log.info("status without the switch's counters: %s", error)
        now = time.monotonic()
        return pb.StatusReply(
            jobs=[_describe(job, packets, now) for job in self._jobs],
            slots_total=self._jobs.leases.slots.total,
            slots_free=self._jobs.leases.slots.free,
            drops=drops,
            switch_connected=self._jobs.switch_fault is None,
            build=self._build.name,
        )

    # What the switch reports (switch_link.Listener)

    def switch_connected(self) -> None:
        self._jobs.switch_connected()
        self._perform()

    def switch_lost(self, fault: str) -> None:
        log.warning("%s", fault)
        self._jobs.switch_lost(fault)
        self._perform()

    def packet_in(self, metadata: Mapping[str, int], payload: bytes) -> None:
        seen = hello.parse(self._build, metadata, payload)
        if seen is None:
            log.debug("a packet of %d bytes from the switch is no hello", len(payload))
            return
        if self._jobs.hello_seen(seen.job_id, seen.generation, seen.rank, seen.ticket, seen.location):
            learned = self._hosts.learn(seen.location)
            if learned:
                self.link.submit(
                    Order(
                        stages=lambda: learned,
                        tolerant=lambda: False,
                        done=lambda: None,
                        refused=partial(log.warning, "the switch refused a host's route: %s"),
                    )
                )
        self._perform()

    def _perform(self) -> None:
        for effect in self._jobs.take_effects():
            if isinstance(effect, Send):
                if effect.member in self._streams:
                    self._streams[effect.member].put_nowait(effect.event)
            elif isinstance(effect, Write):
                self.link.submit(self._order(effect))
            elif isinstance(effect, Answer):
                if isinstance(effect.token, asyncio.Future) and not effect.token.done():
                    effect.token.set_result(effect.texts)
            elif isinstance(effect, Note):
                log.info("%s", effect.text)

    def _order(self, write: Write) -> Order:
        def done() -> None:
            self._jobs.written(write, time.monotonic())
            self._perform()

        def refused(text: str) -> None:
            if write.step is Step.CLOSE:
                # nobody may get these slots while old entries lead to them: start the switch afresh
                self.link.fail(SwitchError(f"the switch does not remove entries of a job: {text}"))
                return
            self._jobs.write_failed(write, text)
            self._perform()

        return Order(stages=lambda: write.stages, tolerant=lambda: write.tolerant, done=done, refused=refused)


def drop_reasons() -> dict[str, int]:
    """Index into the counter of drops by reason, named as in constants.p4 ("parser", "stale", ...)."""
    return {
        name.removeprefix("DROP_").lower(): index
        for name, index in vars(constants).items()
        if name.startswith("DROP_") and name != "DROP_REASONS"
    }


async def _abort_unknown(who: pb.Member, context: Any) -> None:
    await context.abort(
        grpc.StatusCode.NOT_FOUND, f"rank {who.rank} is not, or no longer, in a job {who.job!r} here"
    )


def _describe(job: Job, packets: Mapping[tuple[MatchValue, ...], int], now: float) -> pb.StatusReply.Job:
    ranks = []
    for _, member in sorted(job.members.items()):
        where = member.location
        ranks.append(
            pb.StatusReply.Rank(
                rank=member.rank,
                host=member.host,
                pid=member.pid,
                data_address=f"{format_address(where.address)}:{where.udp_port}" if where else "",
                switch_port=where.port if where else 0,
                packets=packets.get((job.lease.job_id, job.generation, member.rank), 0),
                silent=max(0.0, now - member.heard),
            )
        )
    return pb.StatusReply.Job(
        name=job.name,
        job_id=job.lease.job_id,
        generation=job.generation,
        world_size=job.world_size,
        state=job.state.value,
        slot_base=job.lease.slots.start,
        slots=len(job.lease.slots),
        ranks=ranks,
    )
