"""Writing and reading indirect counters (P4Runtime 1.4, "CounterEntry")."""

from __future__ import annotations

from collections.abc import Iterator

from p4.v1 import p4runtime_pb2

from switchreduce.sim.p4runtime.p4info import Counter, Schema
from switchreduce.sim.p4runtime.status import Code, RequestError, invalid
from switchreduce.sim.p4runtime.tables import check_counter_data
from switchreduce.sim.target import Switch


class CounterCells:
    """The indirect counters of one pipeline, as P4Runtime sees them."""

    def __init__(self, schema: Schema, switch: Switch) -> None:
        self._schema = schema
        self._switch = switch

    def write(self, kind: int, message: p4runtime_pb2.CounterEntry) -> None:
        """Sets one cell, or all cells when the index is unset; raises RequestError."""
        if kind != p4runtime_pb2.Update.MODIFY:
            raise invalid("a counter can only be modified")
        counter = self._counter(message.counter_id)
        indices = self._indices(counter, message)
        if not message.HasField("data"):
            return
        check_counter_data(message.data)
        cells = self._switch.counters[counter.name]
        for index in indices:
            cells.write(index, message.data.packet_count, message.data.byte_count)

    def read(self, request: p4runtime_pb2.CounterEntry) -> Iterator[p4runtime_pb2.CounterEntry]:
        """One cell, all cells of one counter, or all cells of all counters; raises RequestError."""
        if request.counter_id:
            counters = [self._counter(request.counter_id)]
        elif request.HasField("index"):
            raise invalid("a counter index needs a counter id")
        else:
            counters = list(self._schema.counters.values())
        for counter in counters:
            cells = self._switch.counters[counter.name]
            for index in self._indices(counter, request):
                packets, octets = cells.read(index)
                message = p4runtime_pb2.CounterEntry(counter_id=counter.id)
                message.index.index = index
                message.data.packet_count = packets
                message.data.byte_count = octets
                yield message

    def _counter(self, counter_id: int) -> Counter:
        counter = self._schema.counters.get(counter_id)
        if counter is None:
            raise invalid(f"no counter has id {counter_id}")
        return counter

    def _indices(self, counter: Counter, message: p4runtime_pb2.CounterEntry) -> range:
        size = self._switch.counters[counter.name].size
        if not message.HasField("index"):
            return range(size)
        index = message.index.index
        if index < 0:
            raise invalid(f"counter {counter.name}: index {index} is negative")
        if index >= size:
            raise RequestError(Code.OUT_OF_RANGE, f"counter {counter.name} has {size} cells, not {index + 1}")
        return range(index, index + 1)
