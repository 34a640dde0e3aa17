"""Writing and reading table entries and their direct counters (P4Runtime 1.4, "TableEntry")."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from p4.v1 import p4runtime_pb2

from switchreduce.sim.p4runtime import bytestrings
from switchreduce.sim.p4runtime.match import KeyValue, decode_key, encode_key
from switchreduce.sim.p4runtime.p4info import Schema, Table
from switchreduce.sim.p4runtime.status import Code, RequestError, invalid
from switchreduce.sim.target import Entry, EntryExists, Switch, TableFull

Update = p4runtime_pb2.Update


@dataclass(frozen=True)
class Cookies:
    """What a controller attaches to an entry; kept here because the data plane has no use for it."""

    metadata: bytes = b""
    controller_metadata: int = 0


NO_COOKIES = Cookies()


class TableEntries:
    """The table entries of one pipeline, as P4Runtime sees them. The caller serialises the calls."""

    def __init__(self, schema: Schema, switch: Switch) -> None:
        self._schema = schema
        self._switch = switch
        self._cookies: dict[tuple[int, tuple[KeyValue, ...], int], Cookies] = {}
        self._default_cookies: dict[int, Cookies] = {}

    # Entries

    def write(self, kind: int, message: p4runtime_pb2.TableEntry) -> None:
        """Applies one INSERT, MODIFY or DELETE; raises RequestError."""
        table = self._table(message.table_id)
        if message.is_const:
            raise invalid(f"table {table.name}: is_const cannot be written")
        if message.is_default_action:
            self._write_default(kind, table, message)
        elif kind == Update.INSERT:
            self._insert(table, message)
        elif kind == Update.MODIFY:
            self._modify(table, message)
        else:
            self._delete(table, message)

    def read(self, request: p4runtime_pb2.TableEntry) -> Iterator[p4runtime_pb2.TableEntry]:
        """The entries that ``request`` selects (P4Runtime 1.4, "Wildcard Reads"); raises RequestError."""
        if request.table_id:
            tables = [self._table(request.table_id)]
        elif request.match:
            raise invalid("a match needs a table id")
        else:
            tables = list(self._schema.tables.values())
        if request.HasField("time_since_last_hit"):
            raise invalid(f"table {tables[0].name} has no idle timeout" if tables else "no table")
        for table in tables:
            for message in self._candidates(table, request):
                if _passes(message, request):
                    yield message

    def _insert(self, table: Table, message: p4runtime_pb2.TableEntry) -> None:
        if table.is_const:
            raise _denied(f"table {table.name} is constant")
        if not table.fields:
            raise invalid(f"table {table.name} has no key: set its default action instead")
        self._check_resources(table, message)
        key, priority = self._address(table, message)
        entry = self._entry(table, message, key, priority)
        try:
            self._switch.tables[table.name].insert(entry)
        except EntryExists:
            raise RequestError(Code.ALREADY_EXISTS, f"table {table.name} has this entry already") from None
        except TableFull:
            raise RequestError(
                Code.RESOURCE_EXHAUSTED, f"table {table.name} is full ({table.size} entries)"
            ) from None
        except ValueError as error:
            raise invalid(f"table {table.name}: {error}") from None
        self._cookies[table.id, key, priority] = _cookies(message)
        if message.HasField("counter_data"):
            self._set_counter(table, key, priority, message.counter_data)

    def _modify(self, table: Table, message: p4runtime_pb2.TableEntry) -> None:
        self._check_resources(table, message)
        key, priority = self._address(table, message)
        known = self._find(table, key, priority)
        if message.HasField("action"):
            if self._is_const(table, known):
                raise _denied(f"table {table.name}: a constant entry keeps its action")
            entry = self._entry(table, message, key, priority)
            try:
                self._switch.tables[table.name].modify(entry)
            except ValueError as error:
                raise invalid(f"table {table.name}: {error}") from None
            self._cookies[table.id, key, priority] = _cookies(message)
        if message.HasField("counter_data"):
            self._set_counter(table, key, priority, message.counter_data)

    def _delete(self, table: Table, message: p4runtime_pb2.TableEntry) -> None:
        if table.is_const:
            raise _denied(f"table {table.name} is constant")
        key, priority = self._address(table, message)
        if self._is_const(table, self._find(table, key, priority)):
            raise _denied(f"table {table.name}: this entry is constant")
        self._switch.tables[table.name].delete(key, priority)
        self._cookies.pop((table.id, key, priority), None)

    def _candidates(
        self, table: Table, request: p4runtime_pb2.TableEntry
    ) -> Iterator[p4runtime_pb2.TableEntry]:
        """The entries of one table, before the filters that look at the finished message."""
        if request.is_default_action:
            yield self._default_message(table)
            return
        wanted_key = decode_key(table, request.match) if request.match else None
        with_counter = request.HasField("counter_data") and table.direct_counter_id is not None
        for entry in self._switch.tables[table.name].entries():
            if wanted_key is not None and entry.key != wanted_key:
                continue
            message = p4runtime_pb2.TableEntry(table_id=table.id, is_const=self._is_const(table, entry))
            message.match.extend(encode_key(table, entry.key))
            message.action.CopyFrom(self._action_message(entry.action, entry.params))
            if table.needs_priority:
                message.priority = entry.priority
            cookies = self._cookies.get((table.id, entry.key, entry.priority), NO_COOKIES)
            message.metadata = cookies.metadata
            message.controller_metadata = cookies.controller_metadata
            if with_counter:
                message.counter_data.CopyFrom(self._counter_message(table, entry.key, entry.priority))
            yield message

    # The default entry

    def _write_default(self, kind: int, table: Table, message: p4runtime_pb2.TableEntry) -> None:
        if kind != Update.MODIFY:
            raise invalid(f"table {table.name}: the default entry can only be modified")
        if message.match or message.priority:
            raise invalid(f"table {table.name}: the default entry has neither match nor priority")
        if table.has_const_default:
            raise _denied(f"table {table.name}: the default action is constant")
        self._check_resources(table, message)
        if message.HasField("counter_data"):
            raise RequestError(
                Code.UNIMPLEMENTED, f"table {table.name}: the default entry has no counter on this switch"
            )
        target = self._switch.tables[table.name]
        if not message.HasField("action"):
            target.reset_default()
            self._default_cookies.pop(table.id, None)
            return
        action, params = self._action(table, message, as_default=True)
        try:
            target.set_default(action, params)
        except ValueError as error:
            raise invalid(f"table {table.name}: {error}") from None
        self._default_cookies[table.id] = _cookies(message)

    def _default_message(self, table: Table) -> p4runtime_pb2.TableEntry:
        message = p4runtime_pb2.TableEntry(
            table_id=table.id, is_default_action=True, is_const=table.has_const_default
        )
        default = self._switch.tables[table.name].default
        if default is not None:
            message.action.CopyFrom(self._action_message(*default))
        cookies = self._default_cookies.get(table.id, NO_COOKIES)
        message.metadata = cookies.metadata
        message.controller_metadata = cookies.controller_metadata
        return message

    # Direct counters

    def write_direct_counter(self, kind: int, message: p4runtime_pb2.DirectCounterEntry) -> None:
        """Sets the counter of one entry; raises RequestError."""
        if kind != Update.MODIFY:
            raise invalid("a direct counter can only be modified")
        table = self._counted_table(message.table_entry)
        key, priority = self._address(table, message.table_entry)
        self._find(table, key, priority)
        if message.HasField("data"):
            self._set_counter(table, key, priority, message.data)

    def read_direct_counters(
        self, request: p4runtime_pb2.DirectCounterEntry
    ) -> Iterator[p4runtime_pb2.DirectCounterEntry]:
        """The counters of all tables, of one table, or of one entry; raises RequestError."""
        wanted = request.table_entry
        address = None
        if wanted.table_id:
            tables = [self._counted_table(wanted)]
            if wanted.match or wanted.priority:
                address = self._address(tables[0], wanted)
                self._find(tables[0], *address)
        else:
            tables = [table for table in self._schema.tables.values() if table.direct_counter_id is not None]
        for table in tables:
            for entry in self._switch.tables[table.name].entries():
                if address is not None and (entry.key, entry.priority) != address:
                    continue
                message = p4runtime_pb2.DirectCounterEntry()
                message.table_entry.table_id = table.id
                message.table_entry.match.extend(encode_key(table, entry.key))
                if table.needs_priority:
                    message.table_entry.priority = entry.priority
                message.data.CopyFrom(self._counter_message(table, entry.key, entry.priority))
                yield message

    def _counted_table(self, message: p4runtime_pb2.TableEntry) -> Table:
        table = self._table(message.table_id)
        if table.direct_counter_id is None:
            raise invalid(f"table {table.name} has no direct counter")
        return table

    def _set_counter(
        self, table: Table, key: tuple[KeyValue, ...], priority: int, data: p4runtime_pb2.CounterData
    ) -> None:
        self._switch.tables[table.name].set_direct_counter(key, priority, data.packet_count, data.byte_count)

    def _counter_message(
        self, table: Table, key: tuple[KeyValue, ...], priority: int
    ) -> p4runtime_pb2.CounterData:
        packets, octets = self._switch.tables[table.name].direct_counter(key, priority)
        return p4runtime_pb2.CounterData(packet_count=packets, byte_count=octets)

    # Names, keys and actions

    def _table(self, table_id: int) -> Table:
        table = self._schema.tables.get(table_id)
        if table is None:
            raise invalid(f"no table has id {table_id}")
        return table

    def _address(self, table: Table, message: p4runtime_pb2.TableEntry) -> tuple[tuple[KeyValue, ...], int]:
        """The key and priority that name an entry; raises RequestError(INVALID_ARGUMENT)."""
        if table.needs_priority and message.priority <= 0:
            raise invalid(f"table {table.name}: its kind of match needs a priority above 0")
        if not table.needs_priority and message.priority:
            raise invalid(f"table {table.name}: its kind of match takes no priority")
        return decode_key(table, message.match), message.priority

    def _find(self, table: Table, key: tuple[KeyValue, ...], priority: int) -> Entry:
        entry = self._switch.tables[table.name].get(key, priority)
        if entry is None:
            raise RequestError(Code.NOT_FOUND, f"table {table.name} has no such entry")
        return entry

    def _check_resources(self, table: Table, message: p4runtime_pb2.TableEntry) -> None:
        """Raises RequestError(INVALID_ARGUMENT) for a resource that the table does not have."""
        if message.HasField("meter_config") or message.HasField("meter_counter_data"):
            raise invalid(f"table {table.name} has no direct meter")
        if message.idle_timeout_ns or message.HasField("time_since_last_hit"):
            raise invalid(f"table {table.name} has no idle timeout")
        if message.HasField("counter_data"):
            if table.direct_counter_id is None:
                raise invalid(f"table {table.name} has no direct counter")
            check_counter_data(message.counter_data)

    def _entry(
        self, table: Table, message: p4runtime_pb2.TableEntry, key: tuple[KeyValue, ...], priority: int
    ) -> Entry:
        action, params = self._action(table, message, as_default=False)
        return Entry(key=key, action=action, params=params, priority=priority)

    def _action(
        self, table: Table, message: p4runtime_pb2.TableEntry, *, as_default: bool
    ) -> tuple[str, tuple[int, ...]]:
        """The name and argument values of the action in ``message``; raises RequestError."""
        if message.action.WhichOneof("type") != "action":
            raise invalid(f"table {table.name}: the entry needs an action")
        request = message.action.action
        ref = table.actions.get(request.action_id)
        if ref is None:
            raise invalid(f"table {table.name} has no action with id {request.action_id}")
        action = self._schema.actions[request.action_id]
        if not (ref.as_default if as_default else ref.in_entries):
            place = "as default action" if as_default else "in entries"
            raise _denied(f"table {table.name}: action {action.name} may not be used {place}")
        given = {param.param_id: param.value for param in request.params}
        if len(given) != len(request.params) or given.keys() != {param.id for param in action.params}:
            wanted = ", ".join(f"{param.id} ({param.name})" for param in action.params) or "none"
            raise invalid(f"action {action.name} takes each of these parameters once: {wanted}")
        return action.name, tuple(
            bytestrings.decode(given[param.id], param.width, f"action {action.name}, parameter {param.name}")
            for param in action.params
        )

    def _action_message(self, name: str, params: tuple[int, ...]) -> p4runtime_pb2.TableAction:
        """The message of an action; empty when the P4Info does not know the action (a hidden one)."""
        message = p4runtime_pb2.TableAction()
        action = self._schema.action_named(name)
        if action is None:
            return message
        message.action.action_id = action.id
        for param, value in zip(action.params, params, strict=True):
            message.action.params.add(param_id=param.id, value=bytestrings.encode(value))
        return message

    def _is_const(self, table: Table, entry: Entry) -> bool:
        return table.is_const


def check_counter_data(data: p4runtime_pb2.CounterData) -> None:
    """Raises RequestError(INVALID_ARGUMENT) for a negative count."""
    if data.packet_count < 0 or data.byte_count < 0:
        raise invalid("a counter cannot be negative")


def _cookies(message: p4runtime_pb2.TableEntry) -> Cookies:
    return Cookies(message.metadata, message.controller_metadata)


def _passes(message: p4runtime_pb2.TableEntry, request: p4runtime_pb2.TableEntry) -> bool:
    """Whether an entry passes the filters of a read request; a filter left at its default passes all."""
    wanted_action = request.action.action.action_id
    return (
        (not wanted_action or message.action.action.action_id == wanted_action)
        and (not request.priority or message.priority == request.priority)
        and (not request.metadata or message.metadata == request.metadata)
        and (not request.controller_metadata or message.controller_metadata == request.controller_metadata)
    )


def _denied(text: str) -> RequestError:
    return RequestError(Code.PERMISSION_DENIED, text)
