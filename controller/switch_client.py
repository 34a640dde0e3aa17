"""The controller's end of P4Runtime: one connection to one switch, as its primary.

It builds on p4runtime-shell's `P4RuntimeClient`, which is made for a person at a prompt: it prints, ends the
process when the switch does not answer, waits without limit, does not notice a stream that the switch
closes, and its error iterator never gets past an update of a batch that succeeded. `SwitchConnection`
replaces those parts: every failure is a `SwitchError` of one line, and losing the switch is a call-back.
"""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import grpc
from google.protobuf import text_format
from google.rpc import code_pb2, status_pb2
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc
from p4runtime_sh.p4runtime import P4RuntimeClient, P4RuntimeException

from switchreduce.controller.entities import Action, Schema, TableEntry
from switchreduce.controller.entries import Stages
from switchreduce.errors import SwitchError
from switchreduce.p4.builds import Build

CALL_TIMEOUT = 5.0  # seconds for one request, and for the handshake
PIPELINE_TIMEOUT = 120.0  # seconds: the embedded switch compiles the program it is given

CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # an HTTP proxy of the environment is not meant for this
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.max_receive_message_length", -1),
)


class WriteRefused(SwitchError):
    """The switch did not carry out some updates; the message says which, and why."""


class Superseded(SwitchError):
    """Another controller has become the switch's primary."""


class Callbacks(NamedTuple):
    """Called from the connection's own thread."""

    packet_in: Callable[[Mapping[str, int], bytes], None]  # metadata by name, payload
    lost: Callable[[SwitchError], None]  # at most once, and never after close()


class SwitchConnection(P4RuntimeClient):
    """A session with the switch at `address`, which runs `build` once `push_pipeline` has returned.

    Raises:
        SwitchError: the switch does not answer or does not make us primary.
    """

    def __init__(self, address: str, device_id: int, build: Build, callbacks: Callbacks) -> None:
        # not the parent's constructor: its channel takes no options, and it ends the process on failure
        self.address = address
        self.device_id = device_id
        self.election_id = _election_id()
        self.role_name = None
        self.build = build
        self.schema = _read_schema(build)
        self._callbacks = callbacks
        self._closing = False
        self._primary = threading.Event()
        self._fault: SwitchError | None = None
        self._lock = threading.Lock()
        self.channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        limited = grpc.intercept_channel(self.channel, _Deadline(CALL_TIMEOUT))
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(limited)
        self.set_up_stream()

    def set_up_stream(self) -> None:
        self.stream_out_q: queue.Queue[Any] = queue.Queue()
        self.stream = self.stub.StreamChannel(iter(self.stream_out_q.get, None))
        self.stream_recv_thread = threading.Thread(target=self._receive, name="p4runtime", daemon=True)
        self.stream_recv_thread.start()
        try:
            self.handshake()
        except SwitchError:
            self.close()
            raise

    def handshake(self) -> None:
        request = p4runtime_pb2.StreamMessageRequest()
        request.arbitration.device_id = self.device_id
        request.arbitration.election_id.high, request.arbitration.election_id.low = self.election_id
        self.stream_out_q.put(request)
        if not self._primary.wait(CALL_TIMEOUT):
            raise SwitchError(f"what listens at {self.address} does not answer as a P4Runtime switch does")
        if self._fault is not None:
            raise self._fault

    def push_pipeline(self) -> None:
        """Makes the switch run the build, with empty tables whatever it did before.

        Raises:
            SwitchError: the switch refuses it, or is gone.
        """
        program = self.build.json_path.read_bytes()
        digest = hashlib.sha256(program + self.build.p4info_path.read_bytes()).digest()
        request = p4runtime_pb2.SetForwardingPipelineConfigRequest(
            device_id=self.device_id,
            election_id=self._election(),
            action=p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
        )
        request.config.p4info.CopyFrom(self.schema.p4info)
        request.config.p4_device_config = program
        request.config.cookie.cookie = int.from_bytes(digest[:8], "big")
        try:
            self.stub.SetForwardingPipelineConfig(request, timeout=PIPELINE_TIMEOUT)
        except grpc.RpcError as error:
            raise SwitchError(
                f"the switch at {self.address} does not take program {self.build.name}: {_describe(error)}"
            ) from None

    def write_stages(self, stages: Stages, tolerant: bool = False) -> None:
        """Writes one stage after the other; with `tolerant`, what is to be deleted may be gone already.

        Raises:
            WriteRefused: the switch refused some updates of a stage. Later stages were not written.
            SwitchError: the switch is gone.
        """
        for stage in stages:
            if not stage:
                continue
            request = p4runtime_pb2.WriteRequest(
                device_id=self.device_id,
                election_id=self._election(),
                updates=[update.encode(self.schema) for update in stage],
            )
            try:
                self.stub.Write(request)
            except grpc.RpcError as error:
                failures = list(_failed_updates(error))
                if tolerant:
                    absent = code_pb2.NOT_FOUND
                    failures = [
                        (index, code, message)
                        for index, code, message in failures
                        if code != absent or stage[index].action is not Action.DELETE
                    ]
                    if not failures and error.code() == grpc.StatusCode.UNKNOWN:
                        continue
                if not failures:
                    raise SwitchError(
                        f"the switch at {self.address} did not carry out a write: {_describe(error)}"
                    ) from None
                text = "; ".join(
                    f"{stage[index]}: {code_pb2.Code.Name(code)} {message}".strip()
                    for index, code, message in failures
                )
                raise WriteRefused(text) from None

    def read_table(self, table: str) -> list[TableEntry]:
        """All entries of a table, with the packets of its direct counter if it has one."""
        entity = p4runtime_pb2.Entity()
        entity.table_entry.table_id = self.schema.tables[table].preamble.id
        if self.schema.tables[table].direct_resource_ids:
            entity.table_entry.counter_data.SetInParent()
        return [TableEntry.decode(self.schema, found.table_entry) for found in self._read(entity)]

    def read_counter(self, counter: str) -> dict[int, int]:
        """Packets by index."""
        entity = p4runtime_pb2.Entity()
        entity.counter_entry.counter_id = self.schema.counters[counter].preamble.id
        cells = [found.counter_entry for found in self._read(entity)]
        return {cell.index.index: cell.data.packet_count for cell in cells}

    def close(self) -> None:
        """Ends the session; the entries stay in the switch."""
        with self._lock:
            self._closing = True
        self.stream_out_q.put(None)
        self.stream.cancel()
        self.channel.close()

    tear_down = close

    def _read(self, entity: Any) -> list[Any]:
        try:
            return [found for reply in self.read_one(entity) for found in reply.entities]
        except (grpc.RpcError, P4RuntimeException) as error:
            cause = error.grpc_error if isinstance(error, P4RuntimeException) else error
            raise SwitchError(f"the switch at {self.address} cannot be read: {_describe(cause)}") from None

    def _receive(self) -> None:
        try:
            for message in self.stream:
                if message.HasField("packet"):
                    fields = self.schema.packet_in_fields(message.packet)
                    self._callbacks.packet_in(fields, message.packet.payload)
                elif message.HasField("arbitration"):
                    if message.arbitration.status.code != code_pb2.OK:
                        self._lose(Superseded(self._superseded_by(message.arbitration.election_id)))
                        return
                    self._primary.set()
            self._lose(SwitchError(f"the switch at {self.address} closed the connection"))
        except grpc.RpcError as error:
            happened = "is gone" if self._primary.is_set() else "refuses this controller"
            self._lose(SwitchError(f"the switch at {self.address} {happened}: {_describe(error)}"))

    def _lose(self, fault: SwitchError) -> None:
        with self._lock:
            established = self._primary.is_set()
            if self._closing or self._fault is not None:
                return
            self._fault = fault
        self._primary.set()
        if established:
            self._callbacks.lost(fault)

    def _election(self) -> Any:
        high, low = self.election_id
        return p4runtime_pb2.Uint128(high=high, low=low)

    def _superseded_by(self, primary: Any) -> str:
        return (
            f"another controller has taken over the switch at {self.address} (its election id is "
            f"{primary.high}:{primary.low}, this one's is {self.election_id[0]}:{self.election_id[1]}); "
            "a switch serves one controller"
        )


class _CallDetails(NamedTuple):
    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class _Deadline(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Gives calls that have no deadline one, so that a switch that hangs is noticed."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(self._limit(details), request)

    def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(self._limit(details), request)

    def _limit(self, details: Any) -> _CallDetails:
        return _CallDetails(
            method=details.method,
            timeout=self._seconds if details.timeout is None else details.timeout,
            metadata=details.metadata,
            credentials=details.credentials,
            wait_for_ready=details.wait_for_ready,
            compression=details.compression,
        )


def _election_id() -> tuple[int, int]:
    """Grows with time, so that the controller that started last is the primary."""
    return divmod(time.time_ns(), 1_000_000_000)


def _read_schema(build: Build) -> Schema:
    return Schema(text_format.Parse(build.p4info_path.read_text(), p4info_pb2.P4Info()))


def _failed_updates(error: Any) -> Iterator[tuple[int, int, str]]:
    """(index in the batch, canonical code, message) of each update that failed.

    The status' details hold a p4.v1.Error for every update (P4Runtime specification 1.3, "Error reporting").
    """
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for index, packed in enumerate(status_pb2.Status.FromString(value).details):
                detail = p4runtime_pb2.Error()
                if packed.Unpack(detail) and detail.canonical_code != code_pb2.OK:
                    yield index, detail.canonical_code, detail.message


def _describe(error: Any) -> str:
    """One line: the status' name and what the server said."""
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return "it did not answer in time"
    return " ".join(f"{error.code().name} {error.details() or ''}".split())
