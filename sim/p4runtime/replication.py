"""Writing and reading multicast groups and clone sessions (P4Runtime 1.4, "PacketReplicationEngineEntry")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from p4.v1 import p4runtime_pb2

from switchreduce.sim.p4runtime import bytestrings
from switchreduce.sim.p4runtime.status import Code, RequestError, invalid
from switchreduce.sim.target import Switch

Update = p4runtime_pb2.Update

# v1model: standard_metadata.egress_spec is bit<9>, mcast_grp and egress_rid are bit<16>.
PORT_BITS = 9
MAX_MULTICAST_GROUP = 2**16 - 1
MAX_INSTANCE = 2**16 - 1
# simple_switch's mirror sessions have 15-bit ids.
MAX_CLONE_SESSION = 2**15 - 1


class Replication:
    """The multicast groups and clone sessions of one pipeline. The caller serialises the calls.

    The messages are kept as written (ports made canonical), so that a controller reads what it wrote.
    """

    def __init__(self, switch: Switch) -> None:
        self._switch = switch
        self._groups: dict[int, p4runtime_pb2.MulticastGroupEntry] = {}
        self._sessions: dict[int, p4runtime_pb2.CloneSessionEntry] = {}

    def write(self, kind: int, message: p4runtime_pb2.PacketReplicationEngineEntry) -> None:
        """Applies one update; raises RequestError."""
        which = message.WhichOneof("type")
        if which == "multicast_group_entry":
            self._write_group(kind, message.multicast_group_entry)
        elif which == "clone_session_entry":
            self._write_session(kind, message.clone_session_entry)
        else:
            raise invalid("the packet replication engine entry is empty")

    def read(
        self, request: p4runtime_pb2.PacketReplicationEngineEntry
    ) -> Iterator[p4runtime_pb2.PacketReplicationEngineEntry]:
        """The group or session with the given id, or all of them for id 0; raises RequestError."""
        which = request.WhichOneof("type")
        if which == "multicast_group_entry":
            for group in _select(self._groups, request.multicast_group_entry.multicast_group_id):
                yield p4runtime_pb2.PacketReplicationEngineEntry(multicast_group_entry=group)
        elif which == "clone_session_entry":
            for session in _select(self._sessions, request.clone_session_entry.session_id):
                yield p4runtime_pb2.PacketReplicationEngineEntry(clone_session_entry=session)
        else:
            raise invalid("the packet replication engine entry is empty")

    def _write_group(self, kind: int, message: p4runtime_pb2.MulticastGroupEntry) -> None:
        group_id = message.multicast_group_id
        if not 0 < group_id <= MAX_MULTICAST_GROUP:
            raise invalid(f"multicast group id {group_id} is not in 1..{MAX_MULTICAST_GROUP}")
        _check_presence(kind, group_id in self._groups, f"multicast group {group_id}")
        if kind == Update.DELETE:
            self._switch.delete_multicast_group(group_id)
            del self._groups[group_id]
            return
        what = f"multicast group {group_id}"
        kept = p4runtime_pb2.MulticastGroupEntry()
        kept.CopyFrom(message)
        replicas = _canonical_replicas(kept.replicas, what)
        try:
            self._switch.set_multicast_group(group_id, replicas)
        except ValueError as error:
            raise invalid(f"{what}: {error}") from None
        self._groups[group_id] = kept

    def _write_session(self, kind: int, message: p4runtime_pb2.CloneSessionEntry) -> None:
        session_id = message.session_id
        if not 0 < session_id <= MAX_CLONE_SESSION:
            raise invalid(f"clone session id {session_id} is not in 1..{MAX_CLONE_SESSION}")
        _check_presence(kind, session_id in self._sessions, f"clone session {session_id}")
        if kind == Update.DELETE:
            self._switch.delete_clone_session(session_id)
            del self._sessions[session_id]
            return
        what = f"clone session {session_id}"
        if message.class_of_service:
            raise RequestError(Code.UNIMPLEMENTED, f"{what}: this switch has no classes of service")
        if message.packet_length_bytes < 0:
            raise invalid(f"{what}: packet_length_bytes is negative")
        kept = p4runtime_pb2.CloneSessionEntry()
        kept.CopyFrom(message)
        replicas = _canonical_replicas(kept.replicas, what)
        try:
            self._switch.set_clone_session(
                session_id, replicas=replicas, truncate_bytes=message.packet_length_bytes
            )
        except ValueError as error:
            raise invalid(f"{what}: {error}") from None
        self._sessions[session_id] = kept


def _select(entries: dict[int, object], wanted: int) -> Iterable:
    if wanted == 0:
        return list(entries.values())
    return [entries[wanted]] if wanted in entries else []


def _check_presence(kind: int, present: bool, what: str) -> None:
    if kind == Update.INSERT and present:
        raise RequestError(Code.ALREADY_EXISTS, f"{what} exists already")
    if kind != Update.INSERT and not present:
        raise RequestError(Code.NOT_FOUND, f"there is no {what}")


def _canonical_replicas(replicas: Iterable[p4runtime_pb2.Replica], what: str) -> list[tuple[int, int]]:
    """The (egress port, replica id) pairs of ``replicas``, whose ports are made canonical in place.

    Raises RequestError(INVALID_ARGUMENT) for a port or instance out of range and for a pair that is twice.
    """
    pairs = []
    for replica in replicas:
        which = replica.WhichOneof("port_kind")
        if which is None:
            raise invalid(f"{what}: a replica has no port")
        if which == "port":
            port = bytestrings.decode(replica.port, PORT_BITS, f"{what}, replica port")
            replica.port = bytestrings.encode(port)
        else:
            port = replica.egress_port
        if port >= 1 << PORT_BITS:
            raise invalid(f"{what}: port {port} does not fit in {PORT_BITS} bits")
        if replica.instance > MAX_INSTANCE:
            raise invalid(f"{what}: instance {replica.instance} is above {MAX_INSTANCE}")
        pairs.append((port, replica.instance))
    if len(set(pairs)) != len(pairs):
        raise invalid(f"{what}: a replica's (port, instance) pair is there twice")
    return pairs
