"""Requests made of random messages: each gets an answer of the protocol's own, and the server goes on."""

from __future__ import annotations

import random
from collections.abc import Callable

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from p4.v1 import p4runtime_pb2

# What a server answers that did not expect the request.
UNEXPECTED = {"INTERNAL", "UNKNOWN"}


class RandomMessages:
    """Random messages of any type, whose numbers and strings are often ones that mean something."""

    def __init__(self, seed: int, ids: list[int]) -> None:
        self._random = random.Random(seed)
        self._ids = ids

    def fill(self, message: Message, depth: int = 0) -> None:
        for field in message.DESCRIPTOR.fields:
            wanted = self._random.random() < (0.6 if depth < 6 else 0.0)
            if not wanted or field.containing_type.full_name.startswith("google.protobuf"):
                continue
            repeated = field.label == FieldDescriptor.LABEL_REPEATED
            for _ in range(self._random.randint(1, 3) if repeated else 1):
                self._set(message, field, repeated, depth)

    def _set(self, message: Message, field: FieldDescriptor, repeated: bool, depth: int) -> None:
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            if field.message_type.GetOptions().map_entry:
                return
            container = getattr(message, field.name)
            self.fill(container.add() if repeated else container, depth + 1)
            if not repeated:
                container.SetInParent()
            return
        value = self._value(field)
        if repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)

    def _value(self, field: FieldDescriptor) -> object:
        choose = self._random.choice
        if field.type == FieldDescriptor.TYPE_BYTES:
            return choose([b"", b"\0", b"\1", b"\xff", b"\0\1", b"\x08\0", self._random.randbytes(7)])
        if field.type == FieldDescriptor.TYPE_STRING:
            return choose(["", "a", "Forward.l2"])
        if field.type == FieldDescriptor.TYPE_BOOL:
            return choose([False, False, True])
        if field.type == FieldDescriptor.TYPE_ENUM:
            return choose(field.enum_type.values).number
        if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
            return 1.0
        unsigned = field.type in (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64)
        small = [0, 1, 1, 2, 3, 4, 5, 32, *self._ids]
        return choose([*small, 2**31 - 1] if unsigned else [*small, 2**31 - 1, -1, -(2**31)])


def entities(messages: RandomMessages, count: int) -> list[p4runtime_pb2.Entity]:
    """Random entities, of each kind in turn."""
    kinds = [field.name for field in p4runtime_pb2.Entity.DESCRIPTOR.fields]
    made = []
    for i in range(count):
        entity = p4runtime_pb2.Entity()
        kind = kinds[i % len(kinds)] if i % 2 else "table_entry"
        getattr(entity, kind).SetInParent()
        messages.fill(getattr(entity, kind))
        made.append(entity)
    return made


def test_random_updates_and_reads(cook, kitchen, error_codes) -> None:
    messages = RandomMessages(1, list(kitchen.ids.values()))
    seen: set[str] = set()
    for number, entity in enumerate(entities(messages, 600)):
        update = p4runtime_pb2.Update(type=1 + number % 3, entity=entity)
        for call in (lambda: cook.stub.Write(cook.request(update)), lambda: cook.read(**_as_field(entity))):  # noqa: B023
            try:
                call()
                seen.add("OK")
            except grpc.RpcError as error:
                seen.update(error_codes(error))
    assert not seen & UNEXPECTED
    assert {"OK", "INVALID_ARGUMENT", "UNIMPLEMENTED", "PERMISSION_DENIED"} <= seen
    assert cook.read(table_entry={})


def code_of(call: Callable[[], object]) -> str:
    try:
        call()
    except grpc.RpcError as error:
        return error.code().name
    return "OK"


def _as_field(entity: p4runtime_pb2.Entity) -> dict[str, Message]:
    which = entity.WhichOneof("entity")
    return {which: getattr(entity, which)}


def test_random_configurations(primary, kitchen) -> None:
    messages = RandomMessages(2, list(kitchen.ids.values()))
    for number in range(60):
        request = p4runtime_pb2.SetForwardingPipelineConfigRequest()
        messages.fill(request)
        if number % 2:
            request.config.p4_device_config = kitchen.device_config
        request.device_id = 3
        request.role, request.role_id = "", 0
        request.election_id.high, request.election_id.low = 0, 1
        request.action = 1
        code = code_of(lambda: primary.stub.SetForwardingPipelineConfig(request))  # noqa: B023
        assert code in ("OK", "INVALID_ARGUMENT", "UNIMPLEMENTED")


def test_random_stream_messages(switch, cook, kitchen, connect) -> None:
    messages = RandomMessages(3, [3])
    for _ in range(100):
        request = p4runtime_pb2.StreamMessageRequest()
        messages.fill(request)
        stream = lambda: list(cook.stub.StreamChannel(iter([request]), timeout=5))  # noqa: B023, E731
        assert code_of(stream) not in UNEXPECTED
    # Bytes that are no message at all end the call and nothing else.
    with grpc.insecure_channel(switch.server.address) as channel:
        write = channel.unary_unary("/p4.v1.P4Runtime/Write")
        for junk in (b"\xff" * 10, b"\x0a\xff\xff\xff\xff\x0f"):
            assert code_of(lambda: write(junk)) == "INTERNAL"  # noqa: B023 (gRPC's answer to undecodable bytes)
    assert connect(10**6).client.api_version()
