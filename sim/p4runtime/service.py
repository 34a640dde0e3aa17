"""The P4Runtime gRPC service: transport, arbitration and packet I/O around one device."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from switchreduce.sim.p4runtime.arbitration import Arbitration, Controller
from switchreduce.sim.p4runtime.device import Device
from switchreduce.sim.p4runtime.outbox import Outbox
from switchreduce.sim.p4runtime.status import Code, RequestError, batch_failure

# The version of the protobuf files that the `p4runtime` package brings.
API_VERSION = "1.4.1"

MAX_CONTROLLERS = 16
# A stream need not become a controller's, and occupies a thread of the server in any case.
MAX_STREAMS = 2 * MAX_CONTROLLERS
MAX_WAITING_PACKET_INS = 1024

# A default gRPC client takes messages up to 4 MiB; entities are a few hundred bytes.
ENTITIES_PER_RESPONSE = 1000


class P4RuntimeService(p4runtime_pb2_grpc.P4RuntimeServicer):
    """Answers P4Runtime calls for one device. gRPC calls it from its worker threads."""

    def __init__(self, device_id: int, device: Device) -> None:
        self._device_id = device_id
        self._device = device
        self._arbitration = Arbitration(device_id, device.wait_for_writes, MAX_CONTROLLERS)
        self._open: set[Controller] = set()
        self._open_lock = threading.Lock()
        self._stopping = False
        self.packet_ins_sent = 0
        self.packet_ins_lost = 0

    # Unary calls

    def Capabilities(
        self, request: p4runtime_pb2.CapabilitiesRequest, context: grpc.ServicerContext
    ) -> p4runtime_pb2.CapabilitiesResponse:
        return p4runtime_pb2.CapabilitiesResponse(p4runtime_api_version=API_VERSION)

    def SetForwardingPipelineConfig(
        self, request: p4runtime_pb2.SetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> p4runtime_pb2.SetForwardingPipelineConfigResponse:
        try:
            self._check_device(request.device_id)
            _check_role(request)
            self._arbitration.check_primary(request)
            self._device.configure(request, lambda: self._arbitration.check_primary(request))
        except RequestError as error:
            context.abort(error.code, error.message)
        return p4runtime_pb2.SetForwardingPipelineConfigResponse()

    def GetForwardingPipelineConfig(
        self, request: p4runtime_pb2.GetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> p4runtime_pb2.GetForwardingPipelineConfigResponse:
        try:
            self._check_device(request.device_id)
        except RequestError as error:
            context.abort(error.code, error.message)
        response = p4runtime_pb2.GetForwardingPipelineConfigResponse()
        config = self._device.config()
        if config is None:
            return response
        response.config.SetInParent()
        if config.HasField("cookie"):
            response.config.cookie.CopyFrom(config.cookie)
        if request.response_type in (request.ALL, request.P4INFO_AND_COOKIE):
            response.config.p4info.CopyFrom(config.p4info)
        if request.response_type in (request.ALL, request.DEVICE_CONFIG_AND_COOKIE):
            response.config.p4_device_config = config.p4_device_config
        return response

    def Write(
        self, request: p4runtime_pb2.WriteRequest, context: grpc.ServicerContext
    ) -> p4runtime_pb2.WriteResponse:
        try:
            self._check_device(request.device_id)
            _check_role(request)
            self._arbitration.check_primary(request)
            if request.atomicity != p4runtime_pb2.WriteRequest.CONTINUE_ON_ERROR:
                raise RequestError(Code.UNIMPLEMENTED, "the only atomicity here is CONTINUE_ON_ERROR")
            outcomes = self._device.write(request.updates, lambda: self._arbitration.check_primary(request))
        except RequestError as error:
            context.abort(error.code, error.message)
        if any(outcomes):
            _abort_batch(context, outcomes, "update")
        return p4runtime_pb2.WriteResponse()

    def Read(
        self, request: p4runtime_pb2.ReadRequest, context: grpc.ServicerContext
    ) -> Iterator[p4runtime_pb2.ReadResponse]:
        try:
            self._check_device(request.device_id)
            if request.role:
                raise RequestError(Code.NOT_FOUND, f"there is no role {request.role!r} here")
            entities, outcomes = self._device.read(request.entities)
        except RequestError as error:
            context.abort(error.code, error.message)
        for start in range(0, len(entities), ENTITIES_PER_RESPONSE):
            yield p4runtime_pb2.ReadResponse(entities=entities[start : start + ENTITIES_PER_RESPONSE])
        if any(outcomes):
            _abort_batch(context, outcomes, "request")

    # The stream

    def StreamChannel(
        self, requests: Iterator[p4runtime_pb2.StreamMessageRequest], context: grpc.ServicerContext
    ) -> Iterator[p4runtime_pb2.StreamMessageResponse]:
        controller = Controller(Outbox(MAX_WAITING_PACKET_INS))
        refused: list[RequestError] = []
        # The stream ends when the controller closes its side, goes away or is refused, or the server stops.
        if not context.add_callback(controller.outbox.close):
            return  # it is gone already
        with self._open_lock:
            if len(self._open) >= MAX_STREAMS:
                context.abort(Code.RESOURCE_EXHAUSTED, f"this switch takes {MAX_STREAMS} streams at a time")
            self._open.add(controller)
        reader = threading.Thread(
            target=self._read_stream,
            args=(requests, controller, refused),
            name="p4runtime-stream",
            daemon=True,
        )
        reader.start()
        try:
            yield from controller.outbox
        finally:
            self._arbitration.leave(controller)
            with self._open_lock:
                self._open.discard(controller)
        if refused:
            context.abort(refused[0].code, refused[0].message)
        if self._stopping:
            context.abort(Code.UNAVAILABLE, "the switch stops")

    def send_packet_in(self, frame: bytes) -> None:
        """Sends a frame that left on the CPU port to the primary controller; never waits for it.

        Without a primary, or when too many packets already wait for it, the packet is lost and counted.
        """
        primary = self._arbitration.primary
        if primary is not None and primary.outbox.has_room():
            packet = self._device.packet_in(frame)
            if packet is not None:
                primary.outbox.put(p4runtime_pb2.StreamMessageResponse(packet=packet))
                self.packet_ins_sent += 1
                return
        self.packet_ins_lost += 1

    def close_streams(self) -> None:
        """Ends every stream once what waits for its controller is sent."""
        with self._open_lock:
            self._stopping = True
            for controller in self._open:
                controller.outbox.close()

    def _read_stream(
        self,
        requests: Iterator[p4runtime_pb2.StreamMessageRequest],
        controller: Controller,
        refused: list[RequestError],
    ) -> None:
        try:
            for request in requests:
                self._handle_stream_message(request, controller)
        except RequestError as error:
            refused.append(error)
        except grpc.RpcError:
            pass  # the controller is gone
        finally:
            controller.outbox.close()

    def _handle_stream_message(
        self, request: p4runtime_pb2.StreamMessageRequest, controller: Controller
    ) -> None:
        which = request.WhichOneof("update")
        if which == "arbitration":
            self._arbitration.update(controller, request.arbitration)
            return
        message = p4runtime_pb2.StreamMessageResponse()
        try:
            if which == "packet":
                message.error.packet_out.SetInParent()
                if controller is not self._arbitration.primary:
                    raise RequestError(Code.PERMISSION_DENIED, "packet-out: only the primary may do this")
                self._device.packet_out(request.packet)
                return
            if which == "digest_ack":
                message.error.digest_list_ack.SetInParent()
                raise RequestError(Code.INVALID_ARGUMENT, "this switch has no digests")
            message.error.other.SetInParent()
            raise RequestError(Code.UNIMPLEMENTED, "this kind of stream message is not supported here")
        except RequestError as error:
            message.error.canonical_code = error.code.value[0]
            message.error.message = error.message
            controller.outbox.put(message)

    def _check_device(self, device_id: int) -> None:
        if device_id != self._device_id:
            raise RequestError(
                Code.NOT_FOUND, f"no device {device_id} here, this is device {self._device_id}"
            )


def _check_role(
    request: p4runtime_pb2.WriteRequest | p4runtime_pb2.SetForwardingPipelineConfigRequest,
) -> None:
    if request.role or request.role_id:
        raise RequestError(Code.NOT_FOUND, "this switch has the default role only: leave the role unset")


def _abort_batch(context: grpc.ServicerContext, outcomes: list[RequestError | None], noun: str) -> None:
    message, metadata = batch_failure(outcomes, noun)
    context.set_trailing_metadata(metadata)
    context.abort(Code.UNKNOWN, message)
