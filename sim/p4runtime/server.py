"""Starting and stopping the P4Runtime server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent import futures

import grpc
from p4.v1 import p4runtime_pb2_grpc

from switchreduce.errors import UsageError
from switchreduce.sim.drivers.dataplane import DataPlane
from switchreduce.sim.p4runtime.device import Device
from switchreduce.sim.p4runtime.service import MAX_STREAMS, P4RuntimeService

# Each open stream occupies a thread; the others are for calls that end.
WORKER_THREADS = MAX_STREAMS + 16

# The narrow build's JSON has several MB, and the server keeps up with whole pipelines in one message.
MAX_MESSAGE_BYTES = 256 * 2**20

STOP_GRACE_S = 1.0
KEEPALIVE_MS = 20_000


class P4RuntimeServer:
    """A P4Runtime server for one device on one TCP address.

    ``address`` is HOST:PORT as gRPC takes it; port 0 picks a free one. ``progress`` is told, a line at a
    time, how a pipeline's compilation goes. Raises UsageError when the address cannot be bound.
    """

    def __init__(
        self,
        dataplane: DataPlane,
        *,
        address: str,
        device_id: int = 0,
        drop_port: int = 511,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.service = P4RuntimeService(device_id, Device(dataplane, drop_port, progress))
        dataplane.on_packet_in = self.service.send_packet_in
        self._server = grpc.server(
            futures.ThreadPoolExecutor(WORKER_THREADS, thread_name_prefix="p4runtime"),
            options=(
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
                ("grpc.so_reuseport", 0),
                # A primary whose machine vanished without a word must not stay the primary.
                ("grpc.keepalive_time_ms", KEEPALIVE_MS),
                ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
            ),
        )
        p4runtime_pb2_grpc.add_P4RuntimeServicer_to_server(self.service, self._server)
        _check_address(address)
        port = self._server.add_insecure_port(address)
        self.address = f"{address.rpartition(':')[0]}:{port}"

    def start(self) -> None:
        self._server.start()

    def summary(self) -> str:
        """One line for an operator."""
        return f"controller: {self.service.packet_ins_sent} packet-ins; {self.service.packet_ins_lost} lost"

    def stop(self) -> None:
        """Ends all calls and frees the port."""
        stopped: threading.Event = self._server.stop(STOP_GRACE_S)
        self.service.close_streams()
        stopped.wait()


def _check_address(address: str) -> None:
    """Raises UsageError, which says why, unless a server can listen on HOST:PORT.

    gRPC itself gives no reason and writes lines of its own to stderr.
    """
    host, _, port = address.rpartition(":")
    try:
        (family, kind, protocol, _, place), *_ = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except ValueError:
        raise UsageError(f"--grpc-server-addr {address} is not HOST:PORT, such as 127.0.0.1:9559") from None
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"cannot listen on {address} for P4Runtime: {reason}. Choose another --grpc-server-addr"
        ) from error
