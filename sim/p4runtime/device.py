"""The device that the server controls: its pipeline configuration, and reads and writes on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from p4.v1 import p4runtime_pb2

from switchreduce.errors import UnsupportedProgramError
from switchreduce.sim.drivers.dataplane import DataPlane
from switchreduce.sim.p4runtime.packet_io import build_packet_out, parse_packet_in
from switchreduce.sim.p4runtime.pipeline import Pipeline, verify
from switchreduce.sim.p4runtime.reconcile import carry_over
from switchreduce.sim.p4runtime.status import Code, RequestError, invalid
from switchreduce.sim.target import Switch
from switchreduce.sim.target.ir import Program


class Device:
    """One switch behind P4Runtime. May be called from any thread.

    The pipeline that reads and writes refer to is not always the one that packets run through: after
    VERIFY_AND_SAVE it is the saved one, on a switch of its own, which COMMIT puts in the data plane.
    """

    def __init__(self, dataplane: DataPlane, drop_port: int, progress: Callable[[str], None] | None) -> None:
        self._dataplane = dataplane
        self._drop_port = drop_port
        self._progress = progress
        self._pipeline: Pipeline | None = None
        self._running: Pipeline | None = None
        # _state orders reads and writes; _configuring is held for as long as a program compiles, so that
        # reads, writes and arbitration go on meanwhile.
        self._state = threading.Lock()
        self._configuring = threading.Lock()

    def wait_for_writes(self) -> None:
        """Returns when the writes that have started are done."""
        with self._state:
            pass

    def configure(
        self, request: p4runtime_pb2.SetForwardingPipelineConfigRequest, check_primary: Callable[[], None]
    ) -> None:
        """Carries out SetForwardingPipelineConfig, which may take seconds to compile; raises RequestError."""
        action = request.action
        if action not in (
            request.VERIFY,
            request.VERIFY_AND_SAVE,
            request.VERIFY_AND_COMMIT,
            request.COMMIT,
            request.RECONCILE_AND_COMMIT,
        ):
            raise invalid("the action is not set")
        with self._configuring:
            if action == request.COMMIT:
                self._commit_saved(request, check_primary)
                return
            schema, program = verify(request.config)
            if action == request.VERIFY:
                return
            if action == request.RECONCILE_AND_COMMIT and self._same_program(request.config):
                self._relabel(request.config, check_primary)
                return
            pipeline = Pipeline(request.config, schema, self._compile(program))
            with self._state:
                # The primary may have changed while the program compiled.
                check_primary()
                if action == request.RECONCILE_AND_COMMIT and self._running is not None:
                    carry_over(self._running, pipeline)
                self._pipeline = pipeline
                if action != request.VERIFY_AND_SAVE:
                    self._run(pipeline)

    def config(self) -> p4runtime_pb2.ForwardingPipelineConfig | None:
        """The configuration that reads and writes refer to."""
        with self._state:
            return None if self._pipeline is None else self._pipeline.config

    def write(
        self, updates: Sequence[p4runtime_pb2.Update], check_primary: Callable[[], None]
    ) -> list[RequestError | None]:
        """Applies a batch, one update after the other; the outcome of each. Raises RequestError."""
        with self._state:
            check_primary()
            pipeline = self._configured()
            return [_outcome(pipeline, update) for update in updates]

    def read(
        self, requests: Sequence[p4runtime_pb2.Entity]
    ) -> tuple[list[p4runtime_pb2.Entity], list[RequestError | None]]:
        """What a batch of read requests finds, and the outcome of each. Raises RequestError."""
        found: list[p4runtime_pb2.Entity] = []
        outcomes: list[RequestError | None] = []
        with self._state:
            pipeline = self._configured()
            for request in requests:
                try:
                    found.extend(pipeline.read(request))
                    outcomes.append(None)
                except RequestError as error:
                    outcomes.append(error)
        return found, outcomes

    def packet_out(self, packet: p4runtime_pb2.PacketOut) -> None:
        """Injects a controller's packet on the CPU port; raises RequestError."""
        pipeline = self._running
        if pipeline is None:
            raise RequestError(Code.FAILED_PRECONDITION, "packet-out: no forwarding pipeline is set")
        if self._dataplane.cpu_port is None:
            raise RequestError(Code.FAILED_PRECONDITION, "packet-out: the switch runs without --cpu-port")
        frame = build_packet_out(packet, pipeline.schema.packet_out)
        if not frame:
            raise invalid("packet-out: the packet is empty")
        if not self._dataplane.inject(frame):
            raise RequestError(Code.RESOURCE_EXHAUSTED, "packet-out: too many packets wait, this one is lost")

    def packet_in(self, frame: bytes) -> p4runtime_pb2.PacketIn | None:
        """A frame that left on the CPU port, as a controller gets it; None when it is malformed."""
        pipeline = self._running
        return None if pipeline is None else parse_packet_in(frame, pipeline.schema.packet_in)

    def _configured(self) -> Pipeline:
        if self._pipeline is None:
            raise RequestError(Code.FAILED_PRECONDITION, "no forwarding pipeline is set")
        return self._pipeline

    def _compile(self, program: Program) -> Switch:
        try:
            return Switch(program, drop_port=self._drop_port, progress=self._progress)
        except UnsupportedProgramError as error:
            raise invalid(f"p4_device_config: {error}") from None

    def _commit_saved(
        self, request: p4runtime_pb2.SetForwardingPipelineConfigRequest, check_primary: Callable[[], None]
    ) -> None:
        if request.HasField("config"):
            raise invalid("COMMIT takes no config: it puts the saved one to work")
        with self._state:
            check_primary()
            if self._pipeline is None or self._pipeline is self._running:
                raise RequestError(Code.NOT_FOUND, "no configuration is saved: VERIFY_AND_SAVE one first")
            self._run(self._pipeline)

    def _run(self, pipeline: Pipeline) -> None:
        self._running = pipeline
        self._dataplane.install(pipeline.switch)

    def _same_program(self, config: p4runtime_pb2.ForwardingPipelineConfig) -> bool:
        running = self._running
        return (
            running is not None
            and running.config.p4_device_config == config.p4_device_config
            and running.config.p4info == config.p4info
        )

    def _relabel(
        self, config: p4runtime_pb2.ForwardingPipelineConfig, check_primary: Callable[[], None]
    ) -> None:
        """Takes a configuration whose program runs already: only its cookie can be new."""
        with self._state:
            check_primary()
            assert self._running is not None
            self._running.config = config
            self._pipeline = self._running


def _outcome(pipeline: Pipeline, update: p4runtime_pb2.Update) -> RequestError | None:
    try:
        pipeline.apply(update)
    except RequestError as error:
        return error
    return None
