"""Which controller is the primary (P4Runtime 1.4, "Client Arbitration and Controller Replication").

The primary is the live controller whose election id equals the highest one ever accepted. Only the default
role exists here: it covers the whole pipeline.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from p4.v1 import p4runtime_pb2

from switchreduce.sim.p4runtime.outbox import Outbox
from switchreduce.sim.p4runtime.status import Code, RequestError


class Controller:
    """One open stream. ``election_id`` is None while unset: such a controller is never the primary."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.election_id: int | None = None


class Arbitration:
    """The live controllers of one device and the choice of the primary among them.

    ``wait_for_writes`` returns once every Write that has started is done: a new primary is told only then
    that it is the primary. May be called from any thread.
    """

    def __init__(self, device_id: int, wait_for_writes: Callable[[], None], max_controllers: int) -> None:
        self._device_id = device_id
        self._wait_for_writes = wait_for_writes
        self._max_controllers = max_controllers
        self._controllers: list[Controller] = []
        self._primary: Controller | None = None
        self._highest: int | None = None
        self._lock = threading.Lock()

    @property
    def primary(self) -> Controller | None:
        """The primary of this moment. Reads one reference, so it needs no lock."""
        return self._primary

    def check_primary(
        self, request: p4runtime_pb2.WriteRequest | p4runtime_pb2.SetForwardingPipelineConfigRequest
    ) -> None:
        """Raises RequestError(PERMISSION_DENIED) unless the request carries the primary's election id."""
        primary = self._primary
        given = election_number(request)
        if primary is None or given is None or primary.election_id != given:
            raise RequestError(Code.PERMISSION_DENIED, "only the primary controller may do this")

    def update(self, controller: Controller, request: p4runtime_pb2.MasterArbitrationUpdate) -> None:
        """Handles an arbitration message and tells everyone concerned.

        Raises RequestError, which must end the stream, when the message breaks a rule.
        """
        with self._lock:
            joined = controller in self._controllers
            self._check(controller, request, joined)
            if not joined:
                self._controllers.append(controller)
            controller.election_id = election_number(request)
            was_primary = controller is self._primary
            if controller.election_id is not None and controller.election_id >= (self._highest or 0):
                self._promote(controller)
            elif was_primary:
                self._primary = None
                self._notify(self._controllers)
            else:
                self._notify([controller])

    def leave(self, controller: Controller) -> None:
        """Forgets a controller whose stream has ended; the others learn if it was the primary."""
        with self._lock:
            if controller not in self._controllers:
                return
            self._controllers.remove(controller)
            if controller is self._primary:
                self._primary = None
                self._notify(self._controllers)

    def _check(
        self, controller: Controller, request: p4runtime_pb2.MasterArbitrationUpdate, joined: bool
    ) -> None:
        if request.device_id != self._device_id:
            code = Code.FAILED_PRECONDITION if joined else Code.NOT_FOUND
            raise RequestError(code, f"no device {request.device_id} here, this is device {self._device_id}")
        if request.role.name or request.role.id:
            code = Code.FAILED_PRECONDITION if joined else Code.UNIMPLEMENTED
            raise RequestError(code, "this switch has the default role only: leave the role unset")
        if request.role.HasField("config"):
            raise RequestError(Code.INVALID_ARGUMENT, "the default role takes no role.config")
        election_id = election_number(request)
        others = (other for other in self._controllers if other is not controller)
        if election_id is not None and any(other.election_id == election_id for other in others):
            raise RequestError(Code.INVALID_ARGUMENT, f"election id {election_id} is another controller's")
        if not joined and len(self._controllers) >= self._max_controllers:
            raise RequestError(
                Code.RESOURCE_EXHAUSTED, f"this switch takes {self._max_controllers} controllers at a time"
            )

    def _promote(self, controller: Controller) -> None:
        # From here no Write of the old primary starts; those that have started may finish first.
        self._primary = controller
        self._highest = controller.election_id
        self._notify([other for other in self._controllers if other is not controller])
        self._wait_for_writes()
        self._notify([controller])

    def _notify(self, controllers: list[Controller]) -> None:
        for controller in controllers:
            message = p4runtime_pb2.StreamMessageResponse()
            arbitration = message.arbitration
            arbitration.device_id = self._device_id
            if self._highest is not None:
                arbitration.election_id.high = self._highest >> 64
                arbitration.election_id.low = self._highest & (2**64 - 1)
            if controller is self._primary:
                arbitration.status.code = Code.OK.value[0]
                arbitration.status.message = "this controller is the primary"
            elif self._primary is not None:
                arbitration.status.code = Code.ALREADY_EXISTS.value[0]
                arbitration.status.message = "another controller is the primary"
            else:
                arbitration.status.code = Code.NOT_FOUND.value[0]
                arbitration.status.message = "there is no primary"
            controller.outbox.put(message)


def election_number(
    request: p4runtime_pb2.MasterArbitrationUpdate
    | p4runtime_pb2.WriteRequest
    | p4runtime_pb2.SetForwardingPipelineConfigRequest,
) -> int | None:
    """The 128-bit election id of a request as an int, None when it is unset (lower than any other)."""
    if not request.HasField("election_id"):
        return None
    return (request.election_id.high << 64) | request.election_id.low
