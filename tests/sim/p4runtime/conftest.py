"""A running switch and controllers that talk to it, over real gRPC and UDP sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from google.protobuf import text_format
from google.rpc import status_pb2
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2
from p4runtime_sh.p4runtime import P4RuntimeClient

from switchreduce.sim.drivers import DataPlane, UdpDriver
from switchreduce.sim.p4runtime import P4RuntimeServer

PROGRAMS = Path(__file__).parent / "programs"
DEVICE_ID = 3
CPU_PORT = 510

Set = p4runtime_pb2.SetForwardingPipelineConfigRequest


@dataclass
class Program:
    """A compiled test program and the ids of its parts by name."""

    name: str
    p4info: p4info_pb2.P4Info
    device_config: bytes
    ids: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, name: str) -> Program:
        p4info = p4info_pb2.P4Info()
        text_format.Parse((PROGRAMS / f"{name}.p4info.txtpb").read_text(), p4info)
        parts = (p4info.tables, p4info.actions, p4info.counters, p4info.direct_counters, p4info.registers)
        ids = {part.preamble.alias: part.preamble.id for listed in parts for part in listed}
        return cls(name, p4info, (PROGRAMS / f"{name}.json").read_bytes(), ids)

    def config(self, cookie: int | None = None) -> p4runtime_pb2.ForwardingPipelineConfig:
        config = p4runtime_pb2.ForwardingPipelineConfig(
            p4info=self.p4info, p4_device_config=self.device_config
        )
        if cookie is not None:
            config.cookie.cookie = cookie
        return config

    def entry(
        self,
        table: str,
        match: bytes | dict[int, bytes],
        action: str | None,
        *params: int,
        priority: int = 0,
        **fields: object,
    ) -> p4runtime_pb2.TableEntry:
        """A table entry whose match is exact values by field id (or the value of field 1)."""
        entry = p4runtime_pb2.TableEntry(table_id=self.ids[table], priority=priority, **fields)
        for field_id, value in (match if isinstance(match, dict) else {1: match}).items():
            entry.match.add(field_id=field_id).exact.value = value
        if action is not None:
            entry.action.action.action_id = self.ids[action]
            for number, value in enumerate(params, start=1):
                octets = value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")
                entry.action.action.params.add(param_id=number, value=octets)
        return entry


@dataclass
class RunningSwitch:
    dataplane: DataPlane
    server: P4RuntimeServer
    udp: UdpDriver


class Controller:
    """p4runtime-shell's client with the calls that the tests make most."""

    def __init__(self, address: str, election_id: int) -> None:
        self.client = P4RuntimeClient(DEVICE_ID, address, (0, election_id))
        self.stub = self.client.stub

    def request(self, *updates: p4runtime_pb2.Update) -> p4runtime_pb2.WriteRequest:
        request = p4runtime_pb2.WriteRequest(device_id=DEVICE_ID, updates=updates)
        request.election_id.low = self.client.election_id[1]
        return request

    def write(self, kind: str, **entity: object) -> None:
        update = p4runtime_pb2.Update(type=kind, entity=p4runtime_pb2.Entity(**entity))
        self.stub.Write(self.request(update))

    def read(self, **entity: object) -> list[p4runtime_pb2.Entity]:
        request = p4runtime_pb2.ReadRequest(device_id=DEVICE_ID)
        request.entities.add(**entity)
        return [found for response in self.stub.Read(request) for found in response.entities]

    def set_config(
        self, config: p4runtime_pb2.ForwardingPipelineConfig | None, action: str = "VERIFY_AND_COMMIT"
    ) -> None:
        request = Set(device_id=DEVICE_ID, action=action, config=config)
        request.election_id.low = self.client.election_id[1]
        self.stub.SetForwardingPipelineConfig(request)

    def next(self, kind: str, timeout: float = 5) -> p4runtime_pb2.StreamMessageResponse:
        message = self.client.get_stream_packet(kind, timeout=timeout)
        assert message is not None, f"no {kind} message within {timeout} s"
        return message


def codes(error: grpc.RpcError) -> list[str]:
    """The canonical code of each update of a failed batch."""
    assert error.code() == grpc.StatusCode.UNKNOWN, error
    status = status_pb2.Status()
    status.ParseFromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    assert (status.code, status.message) == (grpc.StatusCode.UNKNOWN.value[0], error.details())
    names = {code.value[0]: code.name for code in grpc.StatusCode}
    found = []
    for detail in status.details:
        each = p4runtime_pb2.Error()
        assert detail.Unpack(each)
        assert bool(each.message) == bool(each.canonical_code)
        found.append(names[each.canonical_code])
    return found


@pytest.fixture(scope="session")
def kitchen() -> Program:
    return Program.load("kitchen")


@pytest.fixture(scope="session")
def reflect() -> Program:
    return Program.load("reflect")


@pytest.fixture(scope="session")
def mirror() -> Program:
    return Program.load("mirror")


@pytest.fixture
def switch() -> Iterator[RunningSwitch]:
    """A switch without a program, its data plane running."""
    udp = UdpDriver(("127.0.0.1", 0), reserved=(CPU_PORT, 511))
    dataplane = DataPlane([udp], cpu_port=CPU_PORT)
    server = P4RuntimeServer(dataplane, address="127.0.0.1:0", device_id=DEVICE_ID)
    stop = threading.Event()
    carrier = threading.Thread(target=dataplane.run, args=(stop,))
    carrier.start()
    server.start()
    yield RunningSwitch(dataplane, server, udp)
    server.stop()
    stop.set()
    carrier.join()
    dataplane.close()


@pytest.fixture
def connect(switch: RunningSwitch) -> Iterator[Callable[[int], Controller]]:
    """Connects controllers, by election id."""
    controllers: list[Controller] = []

    def connect_one(election_id: int) -> Controller:
        controllers.append(Controller(switch.server.address, election_id))
        return controllers[-1]

    yield connect_one
    for controller in controllers:
        controller.client.tear_down()


@pytest.fixture
def primary(connect: Callable[[int], Controller]) -> Controller:
    return connect(1)


@pytest.fixture
def cook(primary: Controller, kitchen: Program) -> Controller:
    """The primary controller of a switch that runs the kitchen program."""
    primary.set_config(kitchen.config(cookie=7))
    return primary


@pytest.fixture
def error_codes() -> Callable[[grpc.RpcError], list[str]]:
    return codes
