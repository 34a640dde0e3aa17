"""A real switch and a real controller as processes, and ranks that speak to them over plain sockets."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import numpy as np

from switchreduce import defaults
from switchreduce.controller import coordinator_pb2 as pb
from switchreduce.controller import coordinator_pb2_grpc
from switchreduce.p4.builds import constants, load_build
from switchreduce.p4.packet import datagram_dtype
from switchreduce.sim.processes import Process
from switchreduce.worker.membership import Membership
from tests.waiting import eventually

BUILD = load_build("wide256")
START_TIMEOUT = 120.0  # s: the switch compiles its program when nothing is cached
AGGREGATION = f"{defaults.AGGREGATION_ADDRESS}:{constants.AGGREGATION_PORT}"


def start_switch(grpc_port: int = 0, data_port: int = 0) -> tuple[Process, str, str]:
    """An embedded switch; its P4Runtime and data addresses."""
    switch = Process(
        "switch", "switch", "--no-p4", "--cpu-port", str(constants.CPU_PORT),
        "--grpc-server-addr", f"127.0.0.1:{grpc_port}", "--udp", f"127.0.0.1:{data_port}@{AGGREGATION}",
    )  # fmt: skip
    ready = switch.wait_for(r"P4Runtime on (\S+), data on udp (\S+)", START_TIMEOUT)
    return switch, ready.group(1), ready.group(2)


def start_controller(switch: str, data: str, *more: str, listen: str = "127.0.0.1:0") -> tuple[Process, str]:
    """A controller; where workers join."""
    controller = Process(
        "controller", "controller", "--listen", listen, "--switch", switch, "--data-address", data, *more
    )
    ready = controller.wait_for(r"controller: workers join at (\S+), switch \S+ runs wide256", START_TIMEOUT)
    return controller, ready.group(1)


@dataclass
class Plane:
    """A running switch and controller."""

    switch: Process
    controller: Process
    p4runtime: str
    data: str
    address: str  # where workers join

    def status(self) -> pb.StatusReply:
        with grpc.insecure_channel(self.address) as channel:
            return coordinator_pb2_grpc.CoordinatorStub(channel).Status(pb.StatusRequest(), timeout=5)

    def job(self, name: str) -> pb.StatusReply.Job | None:
        return next((job for job in self.status().jobs if job.name == name), None)

    def join(self, job: str, rank: int, world_size: int, **more) -> Rank:
        return Rank(Membership.join(self.address, job=job, rank=rank, world_size=world_size, **more), rank)

    def running(self, job: str, world_size: int, **more) -> list[Rank]:
        """A job that runs."""
        ranks = [self.join(job, rank, world_size, **more) for rank in range(world_size)]
        eventually(lambda: False not in [rank.say_hello() for rank in ranks])
        return ranks


class Rank:
    """The worker's side of a job, without its engine: a membership and a UDP socket."""

    def __init__(self, membership: Membership, rank: int) -> None:
        self.membership = membership
        self.rank = rank
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect((membership.invitation.data_host, membership.invitation.data_port))
        self.socket.settimeout(2)

    def packet(self, kind: int, **fields: object) -> bytes:
        packet = np.zeros(1, datagram_dtype(BUILD))
        invitation = self.membership.invitation
        known = {
            "magic": constants.MAGIC,
            "kind": kind,
            "lane_count": BUILD.lanes,
            "job": invitation.job_id,
            "rank": self.rank,
            "generation": invitation.generation,
        }
        for name, value in {**known, **fields}.items():
            packet[name] = value
        return packet.tobytes()

    def say_hello(self, ticket: int | None = None) -> bool:
        """Sends one hello; whether the job runs."""
        ticket = self.membership.invitation.ticket if ticket is None else ticket
        self.socket.send(self.packet(constants.KIND_HELLO, chunk=ticket))
        return self.membership.wait_ready(0.02) is not None

    def contribute(self, lanes: object, chunk: int, slot: int = 0) -> None:
        self.socket.send(self.packet(constants.KIND_CONTRIBUTION, chunk=chunk, slot=slot, lanes=lanes))

    def result(self) -> np.void:
        """The next result from the switch."""
        return np.frombuffer(self.socket.recv(9000), datagram_dtype(BUILD))[0]

    def close(self) -> None:
        self.socket.close()
        self.membership.close()


@contextlib.contextmanager
def running_plane(*more: str) -> Iterator[Plane]:
    switch, p4runtime, data = start_switch()
    with switch:
        controller, address = start_controller(p4runtime, data, *more)
        with controller:
            yield Plane(switch, controller, p4runtime, data, address)
