"""A Scapy layer for the protocol, derived from the program's compiled headers as `packet` derives its dtypes.

>>> from switchreduce.p4.scapy_layer import SwitchReduce
>>> rdpcap("port1.pcap")[0].show()

Importing it makes Scapy see the layer behind UDP port `AGGREGATION_PORT`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from scapy.config import conf
from scapy.fields import BitEnumField, BitField, BitFieldLenField, FieldListField, IntField, XBitField
from scapy.layers.inet import UDP
from scapy.packet import Packet, bind_bottom_up, bind_layers

from switchreduce.p4.builds import constant_names, constants, load_build
from switchreduce.p4.packet import LANE_BYTES, header_bytes, header_fields

# The slot header is the same in every build; how many lanes follow, a packet says itself.
BUILD = load_build()


class LanesField(FieldListField):
    """The lanes, a list of unsigned 32-bit integers: `lane_count` of them, or as many as a capture kept.

    FieldListField would unpack lane by lane and refuse more than a hundred.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, [], IntField("lane", 0))

    def any2i(self, pkt: Packet | None, x: Any) -> list[Any]:
        return list(map(int, x)) if isinstance(x, Iterable) else [x]

    def addfield(self, pkt: Packet, s: bytes, val: list[Any]) -> bytes:
        return s + struct.pack(f"!{len(val)}I", *map(int, val))

    def getfield(self, pkt: Packet, s: bytes) -> tuple[bytes, list[int]]:
        count = min(pkt.lane_count, len(s) // LANE_BYTES)
        end = count * LANE_BYTES
        return s[end:], list(struct.unpack(f"!{count}I", s[:end]))


def _field(name: str, width: int) -> BitField:
    if name == "magic":
        return XBitField(name, constants.MAGIC, width)
    if name == "kind":
        return BitEnumField(name, constants.KIND_CONTRIBUTION, width, constant_names("KIND_"))
    if name == "op":
        return BitEnumField(name, constants.OP_SUM, width, constant_names("OP_"))
    if name == "lane_count":
        return BitFieldLenField(name, None, width, count_of="lanes")
    if name == "generation":
        return XBitField(name, 0, width)
    return BitField(name, 0, width)


class SwitchReduce(Packet):
    """A hello, contribution or result: the fields of the program's slot header, and `lanes`.

    Built with `lanes` alone it counts them into `lane_count`. Fewer bytes than the header has become Raw, as
    do those behind the last whole lane.
    """

    name = "SwitchReduce"
    fields_desc = [*(_field(*each) for each in header_fields(BUILD, "slot")), LanesField("lanes")]  # noqa: RUF012

    @classmethod
    def dispatch_hook(cls, _pkt: bytes | None = None, *_: Any, **__: Any) -> type[Packet]:
        """Which class dissects `_pkt`."""
        if _pkt is not None and len(_pkt) < header_bytes(BUILD, "slot"):
            raw: type[Packet] = conf.raw_layer
            return raw
        return cls

    def mysummary(self) -> str:
        """What `PacketList.summary` shows of the layer."""
        text: str = self.sprintf(
            "%SwitchReduce.kind% %SwitchReduce.op% job %SwitchReduce.job% rank %SwitchReduce.rank% "
            "slot %SwitchReduce.slot%.%SwitchReduce.version% chunk %SwitchReduce.chunk%"
        )
        return text


bind_bottom_up(UDP, SwitchReduce, sport=constants.AGGREGATION_PORT)
bind_layers(UDP, SwitchReduce, dport=constants.AGGREGATION_PORT)
# Scapy asks the layers in this order, and a rank's port may be one that another layer claims.
UDP.payload_guess.sort(key=lambda guess: guess[1] is not SwitchReduce)
