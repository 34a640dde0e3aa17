"""A forwarding pipeline: a P4Info, the program it describes and the switch that runs the program."""

from __future__ import annotations

from collections.abc import Iterator

from p4.v1 import p4runtime_pb2

from switchreduce.errors import UnsupportedProgramError
from switchreduce.sim.p4runtime import p4info
from switchreduce.sim.p4runtime.counters import CounterCells
from switchreduce.sim.p4runtime.p4info import Schema, index_p4info
from switchreduce.sim.p4runtime.replication import Replication
from switchreduce.sim.p4runtime.status import Code, RequestError, invalid
from switchreduce.sim.p4runtime.tables import TableEntries
from switchreduce.sim.target import Switch, ir, load_program
from switchreduce.sim.target.ir import Program

Update = p4runtime_pb2.Update

UNSUPPORTED_ENTITIES = {
    "extern_entry": "externs",
    "action_profile_member": "action profiles",
    "action_profile_group": "action profiles",
    "meter_entry": "meters",
    "direct_meter_entry": "meters",
    "value_set_entry": "value sets",
    "register_entry": "registers",  # BMv2 answers the same
    "digest_entry": "digests",
}


def verify(config: p4runtime_pb2.ForwardingPipelineConfig) -> tuple[Schema, Program]:
    """Checks that the device configuration (a BMv2 JSON) loads and that the P4Info describes it.

    Raises RequestError: INVALID_ARGUMENT for a configuration that cannot be realized, UNIMPLEMENTED for a
    P4Info with objects that this server does not offer.
    """
    if not config.p4_device_config:
        raise invalid("the request has no p4_device_config: it must be the compiler's BMv2 JSON")
    if not config.HasField("p4info"):
        raise invalid("the request has no P4Info")
    schema = index_p4info(config.p4info)
    try:
        program = load_program(config.p4_device_config)
    except (UnsupportedProgramError, ValueError, RecursionError) as error:
        raise invalid(f"p4_device_config: {error}") from None
    check_agreement(schema, program)
    return schema, program


def check_agreement(schema: Schema, program: Program) -> None:
    """Raises RequestError(INVALID_ARGUMENT) unless all that the P4Info names is in the program, alike."""
    tables = {table.name: table for table in program.tables}
    for table in schema.tables.values():
        if table.name not in tables:
            raise _disagree(f"table {table.name} is not in the program")
        _check_table(schema, table, tables[table.name])
    counters = {counter.name: counter for counter in program.counters}
    for counter in schema.counters.values():
        if counter.name not in counters:
            raise _disagree(f"counter {counter.name} is not in the program")
        if counter.size != counters[counter.name].size:
            raise _disagree(f"counter {counter.name} has {counters[counter.name].size} cells in the program")


def _check_table(schema: Schema, table: p4info.Table, in_program: ir.Table) -> None:
    # The target has one kind for ternary and optional: a value and a mask.
    wanted = [("ternary" if field.kind == "optional" else field.kind, field.width) for field in table.fields]
    if wanted != [(field.kind, field.width) for field in in_program.key]:
        raise _disagree(f"the key of table {table.name} is another one in the program")
    params_by_action = {action.name: action.params for action in in_program.actions}
    for action_id in table.actions:
        action = schema.actions[action_id]
        if params_by_action.get(action.name) != [(param.name, param.width) for param in action.params]:
            raise _disagree(f"action {action.name} of table {table.name} is not in the program, or not alike")
    if (table.direct_counter_id is not None) != (in_program.direct_counter is not None):
        raise _disagree(f"table {table.name} has a direct counter on one side only")


def _disagree(text: str) -> RequestError:
    return invalid(f"P4Info and p4_device_config disagree: {text}")


class Pipeline:
    """A configuration on its switch, with everything that P4Runtime writes to it.

    The caller serialises the calls; the switch itself may run packets meanwhile.
    """

    def __init__(
        self, config: p4runtime_pb2.ForwardingPipelineConfig, schema: Schema, switch: Switch
    ) -> None:
        self.config = config
        self.schema = schema
        self.switch = switch
        self._tables = TableEntries(schema, switch)
        self._counters = CounterCells(schema, switch)
        self._replication = Replication(switch)

    def apply(self, update: p4runtime_pb2.Update) -> None:
        """Applies one update; raises RequestError."""
        if update.type not in (Update.INSERT, Update.MODIFY, Update.DELETE):
            raise invalid("the update's type is not set")
        entity = update.entity
        which = entity.WhichOneof("entity")
        if which == "table_entry":
            self._tables.write(update.type, entity.table_entry)
        elif which == "direct_counter_entry":
            self._tables.write_direct_counter(update.type, entity.direct_counter_entry)
        elif which == "counter_entry":
            self._counters.write(update.type, entity.counter_entry)
        elif which == "packet_replication_engine_entry":
            self._replication.write(update.type, entity.packet_replication_engine_entry)
        else:
            raise _refused_entity(which)

    def read(self, request: p4runtime_pb2.Entity) -> Iterator[p4runtime_pb2.Entity]:
        """The entities that one read request selects; raises RequestError."""
        which = request.WhichOneof("entity")
        if which == "table_entry":
            for entry in self._tables.read(request.table_entry):
                yield p4runtime_pb2.Entity(table_entry=entry)
        elif which == "direct_counter_entry":
            for direct in self._tables.read_direct_counters(request.direct_counter_entry):
                yield p4runtime_pb2.Entity(direct_counter_entry=direct)
        elif which == "counter_entry":
            for cell in self._counters.read(request.counter_entry):
                yield p4runtime_pb2.Entity(counter_entry=cell)
        elif which == "packet_replication_engine_entry":
            for item in self._replication.read(request.packet_replication_engine_entry):
                yield p4runtime_pb2.Entity(packet_replication_engine_entry=item)
        else:
            raise _refused_entity(which)


def _refused_entity(which: str | None) -> RequestError:
    if which is None:
        return invalid("the entity is empty")
    return RequestError(Code.UNIMPLEMENTED, f"this switch does not offer {UNSUPPORTED_ENTITIES[which]}")
