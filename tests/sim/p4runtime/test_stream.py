"""Arbitration, packet-in and packet-out over real streams and sockets."""

from __future__ import annotations

import queue
import socket
import time
from collections.abc import Callable, Iterator

import grpc
import pytest
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc
from scapy.all import IP, UDP, Ether

PRIMARY, BACKUP, NONE = (
    code.value[0] for code in (grpc.StatusCode.OK, grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.NOT_FOUND)
)
# What the UDP driver gives the frames of its peers as destination.
SWITCH_MAC = bytes.fromhex("02000000ffff")


def status_of(controller) -> int:
    return controller.next("arbitration").arbitration.status.code


def packet_out(port: int, payload: bytes, **changes: object) -> p4runtime_pb2.StreamMessageRequest:
    packet = p4runtime_pb2.PacketOut(payload=payload)
    packet.metadata.add(metadata_id=1, value=port.to_bytes(2, "big"))
    packet.metadata.add(metadata_id=2, value=b"\0")
    return p4runtime_pb2.StreamMessageRequest(packet=packet)


def test_every_controller_learns_who_is_primary(connect: Callable) -> None:
    first = connect(10)  # P4RuntimeClient takes the first notice itself
    second = connect(20)
    assert status_of(first) == BACKUP
    third = connect(5)
    second.client.stream_out_q.put(None)  # closes its side of the stream
    assert status_of(first) == NONE
    assert status_of(third) == NONE
    first.client.election_id = (0, 20)
    first.client.handshake()
    assert status_of(third) == BACKUP


def test_only_the_primary_writes(connect: Callable, kitchen) -> None:
    old, new = connect(1), connect(2)
    with pytest.raises(grpc.RpcError) as refused:
        old.set_config(kitchen.config())
    assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
    new.set_config(kitchen.config())
    with pytest.raises(grpc.RpcError) as refused:
        old.stub.Write(old.request())
    assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
    new.stub.Write(new.request())
    assert old.read(table_entry=p4runtime_pb2.TableEntry())  # reading takes no rights


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ({"arbitration": {"device_id": 9}}, grpc.StatusCode.NOT_FOUND),
        ({"arbitration": {"device_id": 3, "role": {"name": "x"}}}, grpc.StatusCode.UNIMPLEMENTED),
        ({"arbitration": {"device_id": 3, "election_id": {"low": 1}}}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_a_wrong_arbitration_message_ends_the_stream(
    primary, request_: dict[str, object], code: grpc.StatusCode
) -> None:
    stream = primary.stub.StreamChannel(iter([p4runtime_pb2.StreamMessageRequest(**request_)]))
    with pytest.raises(grpc.RpcError) as ended:
        list(stream)
    assert ended.value.code() == code


def test_streams_do_not_starve_other_calls(switch, connect: Callable) -> None:
    controllers = [connect(i + 1) for i in range(16)]
    for controller in controllers[::5]:
        assert controller.client.api_version().startswith("1.")
    with grpc.insecure_channel(switch.server.address) as channel:
        stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
        arbitration = {"device_id": 3, "election_id": {"low": 99}}
        too_many = p4runtime_pb2.StreamMessageRequest(arbitration=arbitration)
        with pytest.raises(grpc.RpcError) as refused:
            list(stub.StreamChannel(iter([too_many])))
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_idle_streams_do_not_starve_other_calls_either(switch, connect: Callable) -> None:
    with grpc.insecure_channel(switch.server.address) as channel:
        stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
        silent: queue.Queue = queue.Queue()
        streams = [stub.StreamChannel(iter(silent.get, None)) for _ in range(40)]
        stub.Capabilities(p4runtime_pb2.CapabilitiesRequest(), timeout=10)
        ended: list[grpc.Call] = []
        deadline = time.monotonic() + 5
        while len(ended) < 8 and time.monotonic() < deadline:
            ended = [stream for stream in streams if stream.done()]
        assert {stream.code() for stream in ended} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert len(ended) == 8
        for _ in streams:
            silent.put(None)


@pytest.fixture
def peer(switch, cook) -> Iterator[socket.socket]:
    """A host on port 1 of the switch."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as host:
        host.connect(switch.udp.address)
        host.settimeout(5)
        host.send(b"hello")  # dropped by the program, but now port 1 is this host's
        deadline = time.monotonic() + 10
        while not any(each.counter_entry.data.packet_count for each in cook.read(counter_entry={})):
            assert time.monotonic() < deadline, "the program sees no packet"
        yield host


def udp_frame(payload: bytes) -> bytes:
    return bytes(Ether() / IP() / UDP() / payload)


def test_a_packet_out_leaves_on_the_port_it_names(cook, peer: socket.socket) -> None:
    cook.client.stream_out_q.put(packet_out(1, udp_frame(b"from the controller")))
    assert peer.recv(2048) == b"from the controller"


def test_a_packet_in_carries_the_programs_header_and_goes_to_the_primary_only(
    cook, connect: Callable, kitchen, peer: socket.socket
) -> None:
    backup = connect(0)
    cook.write("INSERT", table_entry=kitchen.entry("l2", SWITCH_MAC, "to_controller", 5))
    peer.send(b"to the controller")
    packet = cook.next("packet").packet
    assert [(item.metadata_id, item.value) for item in packet.metadata] == [(1, b"\x01"), (2, b"\x05")]
    assert packet.payload.endswith(b"to the controller")
    assert packet.payload[:6] == SWITCH_MAC
    assert backup.client.get_stream_packet("packet", timeout=0.2) is None


def test_a_clone_for_the_controller_is_a_packet_in(switch, primary, mirror) -> None:
    primary.set_config(mirror.config())
    session = p4runtime_pb2.CloneSessionEntry(session_id=5, replicas=[{"egress_port": 510, "instance": 1}])
    session.packet_length_bytes = 45
    primary.write("INSERT", packet_replication_engine_entry={"clone_session_entry": session})
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.connect(switch.udp.address)
        peer.send(b"mirrored")
    packet = primary.next("packet").packet
    assert [(item.metadata_id, item.value) for item in packet.metadata] == [(1, b"\x06")]
    # The session's length counts what leaves: the controller's header, 42 bytes of headers, two of payload.
    assert packet.payload[42:] == b"mi"


def test_a_controller_that_does_not_read_loses_packets_and_slows_nothing(
    switch, cook, kitchen, peer: socket.socket
) -> None:
    cook.write("INSERT", table_entry=kitchen.entry("l2", SWITCH_MAC, "to_controller", 5))
    service = switch.server.service
    # The stream's reader is stopped by what it has not taken yet: messages of 60 kB fill gRPC's window.
    arbitration = p4runtime_pb2.StreamMessageRequest(arbitration={"device_id": 3, "election_id": {"low": 50}})
    requests: queue.Queue = queue.Queue()
    requests.put(arbitration)
    deaf = cook.stub.StreamChannel(iter(requests.get, None))
    assert next(deaf).arbitration.status.code == PRIMARY
    deadline = time.monotonic() + 20
    while service.packet_ins_lost == 0 and time.monotonic() < deadline:
        peer.send(bytes(60_000))
    assert service.packet_ins_lost > 0
    assert switch.dataplane.counters.no_port == 0
    deaf.cancel()
    requests.put(None)


def test_a_multicast_group_reaches_every_peer(switch, cook, kitchen, peer: socket.socket) -> None:
    group = p4runtime_pb2.MulticastGroupEntry(multicast_group_id=5)
    group.replicas.add(egress_port=1, instance=1)
    group.replicas.add(port=b"\x02", instance=1)
    cook.write("INSERT", packet_replication_engine_entry={"multicast_group_entry": group})
    cook.write("INSERT", table_entry=kitchen.entry("l2", SWITCH_MAC, "multicast", 5))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as second:
        second.connect(switch.udp.address)
        second.settimeout(5)
        second.send(b"for all")
        assert [peer.recv(100), second.recv(100)] == [b"for all", b"for all"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda packet: packet.metadata.pop(), grpc.StatusCode.INVALID_ARGUMENT),
        (lambda packet: packet.metadata.add(metadata_id=9, value=b"\1"), grpc.StatusCode.INVALID_ARGUMENT),
        (lambda packet: packet.metadata.add(metadata_id=2, value=b"\1"), grpc.StatusCode.INVALID_ARGUMENT),
        (lambda packet: setattr(packet.metadata[0], "value", b"\2\0"), grpc.StatusCode.INVALID_ARGUMENT),
        (lambda packet: setattr(packet.metadata[0], "value", b""), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_a_malformed_packet_out_is_reported_and_dropped(
    cook, change: Callable[[p4runtime_pb2.PacketOut], None], code: grpc.StatusCode
) -> None:
    message = packet_out(1, udp_frame(b"x"))
    change(message.packet)
    cook.client.stream_out_q.put(message)
    error = cook.next("unknown").error
    assert (error.canonical_code, error.WhichOneof("details")) == (code.value[0], "packet_out")


def test_packet_outs_of_a_backup_or_without_a_program_are_refused(connect: Callable) -> None:
    primary, backup = connect(2), connect(1)
    for controller, code in (
        (primary, grpc.StatusCode.FAILED_PRECONDITION),
        (backup, grpc.StatusCode.PERMISSION_DENIED),
    ):
        controller.client.stream_out_q.put(packet_out(1, b"x"))
        assert controller.next("unknown").error.canonical_code == code.value[0]


def test_other_stream_messages_are_reported(primary) -> None:
    for update, details in (({"digest_ack": {"digest_id": 1}}, "digest_list_ack"), ({"other": {}}, "other")):
        primary.client.stream_out_q.put(p4runtime_pb2.StreamMessageRequest(**update))
        assert primary.next("unknown").error.WhichOneof("details") == details
