"""A rank's tie to the controller: joins a job, shows that it lives, hears how the job fares.

gRPC's own threads and two daemon threads do the work, so that a caller can wait for data and for news in one
``select``: `Membership.fileno` is readable when there is news, which `Membership.check` takes note of.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from types import TracebackType
from typing import Any

import grpc

from switchreduce import defaults
from switchreduce.controller import coordinator_pb2 as pb
from switchreduce.controller import coordinator_pb2_grpc
from switchreduce.errors import (
    ControllerError,
    MismatchError,
    RankLostError,
    SwitchError,
    SwitchReduceError,
    UsageError,
)

INVITATION_TIMEOUT = 10.0  # seconds; the controller writes to the switch before it invites
LEAVE_TIMEOUT = 2.0  # seconds
EXPLAIN_SLACK = 3.0  # seconds on top of the controller's own time-out

CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # an HTTP proxy of the environment is not meant for this
    ("grpc.max_reconnect_backoff_ms", 500),
)

ERROR_OF_CAUSE: dict[int, type[SwitchReduceError]] = {
    pb.Ended.RANK_LOST: RankLostError,
    pb.Ended.NEVER_JOINED: RankLostError,
    pb.Ended.UNREACHABLE: SwitchError,
    pb.Ended.MISMATCH: MismatchError,
    pb.Ended.REFUSED: ControllerError,
    pb.Ended.SWITCH_LOST: SwitchError,
    pb.Ended.SHUTDOWN: ControllerError,
}


class Membership:
    """Membership of one rank in one job. Use it from one thread; close it, or use it as a context manager."""

    invitation: pb.Invitation

    @classmethod
    def join(
        cls,
        controller: str,
        *,
        job: str,
        rank: int,
        world_size: int,
        slots: int = 0,
        timeout: float = defaults.JOIN_TIMEOUT,
    ) -> Membership:
        """Join `job` and return once invited; from then on, hellos are to be sent to the switch.

        `timeout`, in seconds, bounds the wait for the controller and, from then on, for the other ranks.
        `slots` is the number of switch slots wanted, 0 to leave it to the controller.

        Raises UsageError, ControllerError (none there, or it refuses) or another of the errors of `check`.
        """
        request = pb.JoinRequest(
            job=job,
            rank=rank,
            world_size=world_size,
            slots=slots,
            join_timeout=timeout,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        membership = cls(controller, request, timeout)
        try:
            membership._await_invitation()
        except BaseException:
            membership.close()
            raise
        return membership

    def __init__(self, controller: str, request: pb.JoinRequest, timeout: float) -> None:
        self._controller = controller
        self._request = request
        self._changed = threading.Condition()
        self._invited = False
        self._slots: int | None = None
        self._ended: SwitchReduceError | None = None
        self._departed: dict[int, pb.Departed] = {}
        self._closing = threading.Event()
        self._wake_up, self._waker = socket.socketpair()
        self._wake_up.setblocking(False)
        self._waker.setblocking(False)
        self._channel = grpc.insecure_channel(controller, options=CHANNEL_OPTIONS)
        try:
            self._await_controller(timeout)
        except BaseException:
            self._close_quietly()
            raise
        self._stub = coordinator_pb2_grpc.CoordinatorStub(self._channel)
        self._events = self._stub.Join(request)
        threading.Thread(target=self._listen, name="switchreduce-events", daemon=True).start()

    # News

    def fileno(self) -> int:
        """Readable when there is news."""
        return self._wake_up.fileno()

    def check(self, call: int | None = None) -> None:
        """Take note of news; raise if the job is over.

        With `call`, the number of a collective call that is under way, also raise if a rank left before it
        finished that call, since the call can never complete then.

        Raises:
            RankLostError: a rank never came, died or left.
            MismatchError: the ranks disagree about the world size.
            SwitchError: the switch is gone or this job's packets do not come through it.
            ControllerError: the controller refused, was stopped or is gone.
        """
        self._drain()
        with self._changed:
            self._raise_if_ended()
            if call is not None:
                for departed in self._departed.values():
                    if departed.calls <= call:
                        raise RankLostError(f"{departed.message}; this is call {call + 1}")

    def wait_ready(self, timeout: float) -> int | None:
        """The job's slots once it runs, or None if it does not after `timeout` seconds.

        Raises as `check` does.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._slots is not None or self._ended is not None, timeout)
            self._raise_if_ended()
            return self._slots

    # Requests

    def explain(self, call: int, text: str) -> dict[int, str]:
        """Say how failed collective call `call` looked from here; what the ranks said, by rank.

        Ranks that said nothing for `defaults.EXPLAIN_TIMEOUT` are left out. Raises as `check` does.
        """
        report = pb.Report(member=self._member(), call=call, text=text)
        try:
            replies = self._stub.Explain(report, timeout=defaults.EXPLAIN_TIMEOUT + EXPLAIN_SLACK)
        except grpc.RpcError as error:
            self._await_end(1.0)  # the job may have ended meanwhile, and that says more
            raise ControllerError(f"{self._name()} does not answer: {_describe(error)}") from None
        return dict(replies.by_rank)

    def leave(self, calls: int = 0) -> None:
        """Leave the job in good order, having finished `calls` collective calls. Never raises.

        The other ranks can still fetch the results of those calls.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        if self._invited and self._ended is None:
            # where the controller is gone or has ended the job, this rank is out anyway
            with contextlib.suppress(grpc.RpcError):
                self._stub.Leave(pb.LeaveRequest(member=self._member(), calls=calls), timeout=LEAVE_TIMEOUT)
        self._close_quietly()

    def close(self) -> None:
        """`leave`."""
        self.leave()

    def __enter__(self) -> Membership:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Threads

    def _listen(self) -> None:
        """Reads events until the job is over."""
        try:
            for event in self._events:
                self._take(event)
                if event.HasField("ended"):
                    return
            self._end(ControllerError(f"{self._name()} ended the connection"))
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNIMPLEMENTED:
                self._end(
                    ControllerError(f"what answers at {self._controller} is not a switchreduce controller")
                )
            else:
                self._end(ControllerError(f"{self._name()} is gone: {_describe(error)}"))

    def _beat(self) -> None:
        """Sends heartbeats until the job is over; a controller that stays silent is as good as gone."""
        interval = self.invitation.heartbeat_interval or defaults.HEARTBEAT_INTERVAL
        heard = time.monotonic()
        while not self._closing.wait(interval) and self._ended is None:
            try:
                self._stub.Heartbeat(self._member(), timeout=1.0)
                heard = time.monotonic()
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.NOT_FOUND:
                    return  # the job is over, and the event that says so is on its way
                silence = time.monotonic() - heard
                if silence > defaults.HEARTBEAT_TIMEOUT:
                    self._end(ControllerError(f"{self._name()} has not answered for {silence:.1f} s"))
            except ValueError:
                return  # the channel was closed meanwhile

    # Steps

    def _await_controller(self, timeout: float) -> None:
        try:
            grpc.channel_ready_future(self._channel).result(timeout=timeout)
        except grpc.FutureTimeoutError:
            raise ControllerError(
                f"no controller answers at {self._controller} (waited {timeout:g} s): start one with "
                "`switchreduce controller`, which answers once it has its switch, or say with --controller "
                "where it is"
            ) from None

    def _await_invitation(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._invited or self._ended is not None, INVITATION_TIMEOUT)
            self._raise_if_ended()
            if not self._invited:
                raise ControllerError(f"{self._name()} has not answered for {INVITATION_TIMEOUT:g} s")
        threading.Thread(target=self._beat, name="switchreduce-heartbeat", daemon=True).start()

    def _await_end(self, timeout: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended is not None, timeout)
            self._raise_if_ended()

    def _take(self, event: pb.Event) -> None:
        with self._changed:
            if event.HasField("invitation"):
                self.invitation = event.invitation
                self._invited = True
            elif event.HasField("ready"):
                self._slots = event.ready.slots
            elif event.HasField("departed"):
                self._departed[event.departed.rank] = event.departed
            elif event.HasField("ended"):
                kind = ERROR_OF_CAUSE.get(event.ended.cause, UsageError)
                self._ended = self._ended or kind(event.ended.message)
            self._changed.notify_all()
        self._wake()

    def _end(self, error: SwitchReduceError) -> None:
        with self._changed:
            self._ended = self._ended or error
            self._changed.notify_all()
        self._wake()

    def _raise_if_ended(self) -> None:
        if self._ended is not None:
            raise self._ended

    def _wake(self) -> None:
        # a full socket wakes already; behind a closed one nobody waits
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def _drain(self) -> None:
        with contextlib.suppress(OSError):  # empty, or closed
            while self._wake_up.recv(4096):
                pass

    def _close_quietly(self) -> None:
        self._closing.set()
        self._end(UsageError("this rank has left its job"))
        self._channel.close()
        self._waker.close()
        self._wake_up.close()

    def _member(self) -> pb.Member:
        return pb.Member(
            job=self._request.job,
            rank=self._request.rank,
            generation=self.invitation.generation,
            ticket=self.invitation.ticket,
        )

    def _name(self) -> str:
        return f"the controller at {self._controller}"


def _describe(error: Any) -> str:
    """One line: the status' name and what the server said."""
    return " ".join(f"{error.code().name} {error.details() or ''}".split())
