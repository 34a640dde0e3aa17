"""Controller headers: the bytes in front of a frame on the CPU port, and the metadata of P4Runtime's
PacketIn and PacketOut (P4Runtime 1.4, "ControllerPacketMetadata" and "Packet I/O").

The header's fields lie in front of the frame in the order of the P4Info, most significant bit first.
"""

from __future__ import annotations

from p4.v1 import p4runtime_pb2

from switchreduce.sim.p4runtime import bytestrings
from switchreduce.sim.p4runtime.p4info import PacketField
from switchreduce.sim.p4runtime.status import invalid


def header_bytes(fields: tuple[PacketField, ...]) -> int:
    """Length of the controller header in bytes."""
    return sum(field.width for field in fields) // 8


def parse_packet_in(frame: bytes, fields: tuple[PacketField, ...]) -> p4runtime_pb2.PacketIn | None:
    """A frame that left on the CPU port, as the controller gets it; None when it is too short."""
    length = header_bytes(fields)
    if len(frame) < length:
        return None
    packet = p4runtime_pb2.PacketIn(payload=frame[length:])
    bits = int.from_bytes(frame[:length], "big")
    shift = 8 * length
    for field in fields:
        shift -= field.width
        value = (bits >> shift) & ((1 << field.width) - 1)
        packet.metadata.add(metadata_id=field.id, value=bytestrings.encode(value))
    return packet


def build_packet_out(packet: p4runtime_pb2.PacketOut, fields: tuple[PacketField, ...]) -> bytes:
    """The frame to inject on the CPU port.

    Raises RequestError(INVALID_ARGUMENT) unless there is exactly one metadata item per header field.
    """
    values: dict[int, int] = {}
    by_id = {field.id: field for field in fields}
    for item in packet.metadata:
        field = by_id.get(item.metadata_id)
        if field is None:
            raise invalid(f"packet-out: no metadata field has id {item.metadata_id}")
        if field.id in values:
            raise invalid(f"packet-out: metadata {field.name} is given twice")
        values[field.id] = bytestrings.decode(item.value, field.width, f"packet-out metadata {field.name}")
    bits = 0
    for field in fields:
        if field.id not in values:
            raise invalid(f"packet-out: metadata {field.name} is missing")
        bits = (bits << field.width) | values[field.id]
    return bits.to_bytes(header_bytes(fields), "big") + packet.payload
