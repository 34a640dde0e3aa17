"""BMv2 and the embedded switch side by side: the same program, entries and packets, and what differs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

from p4.config.v1.p4info_pb2 import ControllerPacketMetadata
from p4.v1 import p4runtime_pb2

from switchreduce.controller.switch_client import Callbacks, SwitchConnection
from switchreduce.errors import SwitchError
from switchreduce.p4.builds import Build
from switchreduce.sim.p4runtime.bytestrings import encode

from .bmv2 import Bmv2, Out
from .embedded import Embedded

# BMv2 drops inside itself when more than about 32 packets come at once.
MOST_AT_ONCE = 16

LATE_S = 0.3  # how long a frame that nobody expects may take

Packet = tuple[int, bytes]  # ingress port, frame


class Pair:
    """Both switches with the program of `build`. `packets` counts those that were sent to both."""

    def __init__(self, build: Build) -> None:
        self.packets = self.frames = 0
        self.bmv2, self.embedded = Bmv2(), Embedded()
        try:
            self.bmv2.wait_until_ready()
            self.connections = [
                SwitchConnection(self.bmv2.address, 0, build, Callbacks(self._bmv2_packet_in, _lost)),
                SwitchConnection(self.embedded.address, 0, build, Callbacks(lambda *_: None, _lost)),
            ]
            for connection in self.connections:
                connection.push_pipeline()
            self.bmv2.open_ports()
        except BaseException:
            self.bmv2.close()
            self.embedded.close()
            raise
        self.schema = self.connections[0].schema

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        self.bmv2.close()
        self.embedded.close()

    def insert(self, *entities: p4runtime_pb2.Entity) -> None:
        """Writes the same to both."""
        updates = [p4runtime_pb2.Update(type="INSERT", entity=entity) for entity in entities]
        for connection in self.connections:
            for update in updates:
                connection.write_update(update)

    def exchange(
        self,
        packets: Sequence[Packet],
        marker: Packet,
        at_once: int = MOST_AT_ONCE,
        any_order: bool = False,
    ) -> None:
        """Sends `packets` to both; the same frames must leave the same ports in the same order per port.

        `at_once` at a time, followed by `marker`, a packet that something leaves for: BMv2 has done with
        those before it when that is there. With `any_order`, what leaves for these few may do so in any.
        """
        for start in range(0, len(packets), at_once):
            self._exchange_few([*packets[start : start + at_once], marker], start, any_order)
        late = self.bmv2.take(1, LATE_S)
        assert not late, f"BMv2 sent {len(late)} frames more, the first {_show(late[0])}"

    def _exchange_few(self, packets: Sequence[Packet], number: int, any_order: bool) -> None:
        expected: list[Out] = []
        for port, frame in packets:
            left = self.embedded.process(port, frame)
            expected += left
        assert left, "nothing leaves for the marker"
        for port, frame in packets:
            self.bmv2.send(port, frame)
        found = self.bmv2.take(len(expected))
        if any_order:
            expected, found = sorted(expected), sorted(found)
        self.packets += len(packets)
        self.frames += len(expected)
        if _by_port(found) != _by_port(expected):
            raise AssertionError(_difference(packets, found, expected, number))

    def exchange_packet_out(self, fields: Mapping[str, int], payload: bytes) -> None:
        """Sends a packet-out, for which one frame leaves, to both."""
        request = p4runtime_pb2.StreamMessageRequest()
        request.packet.payload = payload
        for field in self._controller_header("packet_out").metadata:
            request.packet.metadata.add(metadata_id=field.id, value=encode(fields[field.name]))
        for connection in self.connections:
            connection.stream_out_q.put(request)
        expected, found = self.embedded.take(1), self.bmv2.take(1)
        assert len(expected) == 1
        assert found == expected
        self.packets += 1
        self.frames += 1

    def compare_counters(self) -> int:
        """Every cell of every counter, direct ones included; the number of cells."""
        found, expected = (_counters(connection) for connection in self.connections)
        assert found == expected
        return len(found)

    def _bmv2_packet_in(self, fields: Mapping[str, int], payload: bytes) -> None:
        header = width = 0
        for field in self._controller_header("packet_in").metadata:
            header = header << field.bitwidth | fields[field.name]
            width += field.bitwidth
        self.bmv2.add_packet_in(header.to_bytes(width // 8, "big") + payload)

    def _controller_header(self, name: str) -> ControllerPacketMetadata:
        headers = self.schema.p4info.controller_packet_metadata
        return next(header for header in headers if header.preamble.name == name)


def _lost(error: SwitchError) -> None:
    raise error


def _by_port(frames: Iterable[Out]) -> dict[int, list[bytes]]:
    ports: dict[int, list[bytes]] = defaultdict(list)
    for port, frame in frames:
        ports[port].append(frame)
    return dict(ports)


def _counters(connection: SwitchConnection) -> dict[tuple[object, ...], tuple[int, int]]:
    """(packets, bytes) of each cell."""
    cells: dict[tuple[object, ...], tuple[int, int]] = {}
    info = connection.schema.p4info
    for counter in info.counters:
        entity = p4runtime_pb2.Entity()
        entity.counter_entry.counter_id = counter.preamble.id
        for reply in connection.read_one(entity):
            for found in reply.entities:
                cell = found.counter_entry
                cells[counter.preamble.name, cell.index.index] = _data(cell.data)
    for counter in info.direct_counters:
        entity = p4runtime_pb2.Entity()
        entity.direct_counter_entry.table_entry.table_id = counter.direct_table_id
        for reply in connection.read_one(entity):
            for found in reply.entities:
                direct = found.direct_counter_entry
                key = tuple(sorted(m.SerializeToString() for m in direct.table_entry.match))
                cells[counter.preamble.name, direct.table_entry.priority, key] = _data(direct.data)
    return cells


def _data(data: p4runtime_pb2.CounterData) -> tuple[int, int]:
    return data.packet_count, data.byte_count


def _difference(packets: Sequence[Packet], found: Sequence[Out], expected: Sequence[Out], number: int) -> str:
    """What was sent, and the first frame of each port that differs."""
    lines = [f"the packets from {number} on differ ({len(found)} frames left BMv2, {len(expected)} expected)"]
    lines += [f"sent      {_show(packet)}" for packet in packets]
    of_bmv2, of_embedded = _by_port(found), _by_port(expected)
    for port in sorted(of_bmv2.keys() | of_embedded.keys()):
        for theirs, ours in zip_longest(of_bmv2.get(port, []), of_embedded.get(port, [])):
            if theirs != ours:
                lines += [f"BMv2      {_show((port, theirs))}", f"embedded  {_show((port, ours))}"]
                if theirs is not None and ours is not None:
                    at = [k for k, (x, y) in enumerate(zip(theirs, ours, strict=False)) if x != y]
                    lines.append(f"bytes that differ: {at}")
                break
    return "\n".join(lines)


def _show(packet: tuple[int, bytes | None]) -> str:
    port, frame = packet
    if frame is None:
        return f"port {port}: none"
    return f"port {port}, {len(frame)} bytes: {frame.hex()}"
