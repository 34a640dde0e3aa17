"""`switchreduce controller`: programs a switch and admits workers to it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import socket
import sys
from dataclasses import dataclass
from ipaddress import IPv4Address

import grpc

from switchreduce import defaults
from switchreduce.controller import coordinator_pb2_grpc
from switchreduce.controller.entities import parse_mac
from switchreduce.controller.entries import Host
from switchreduce.controller.hosts import HostTable, parse_host
from switchreduce.controller.jobs import Jobs, Rules
from switchreduce.controller.model import Timing
from switchreduce.controller.service import CoordinatorService
from switchreduce.controller.slots import Capacity, Leases
from switchreduce.controller.switch_link import SwitchLink
from switchreduce.errors import UsageError
from switchreduce.p4.builds import Build, build_names, constants, load_build
from switchreduce.patience import patience

STOP_GRACE = 2.0  # seconds for ranks to hear of a stop and for entries to be removed

EXAMPLE = """\
example:
  switchreduce switch --no-p4 --cpu-port 510 --udp 127.0.0.1:21330    # one terminal: the embedded switch
  switchreduce controller                                             # another: program it, let workers join

With BMv2 in the place of the embedded switch:
  simple_switch_grpc --no-p4 --device-id 0 -i 0@veth0 -i 1@veth2 -- --cpu-port 510 \\
      --grpc-server-addr 127.0.0.1:9559
  switchreduce controller --aggregation-address 10.0.0.254
"""


@dataclass(frozen=True)
class Settings:
    """What a controller is started with."""

    listen: str
    switch: str
    device_id: int
    build: Build
    aggregation_address: IPv4Address
    switch_mac: int
    data_address: tuple[str, int]
    wait: float
    timing: Timing
    hosts: tuple[Host, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    parser.add_argument(
        "--listen", metavar="HOST:PORT", default=f"127.0.0.1:{defaults.CONTROLLER_PORT}",
        help="where workers join; port 0 takes any free one (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--switch", metavar="HOST:PORT", default=f"127.0.0.1:{defaults.P4RUNTIME_PORT}",
        help="the switch's P4Runtime server (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--device-id", type=int, default=defaults.DEVICE_ID, help="the switch's (default: %(default)s)"
    )
    parser.add_argument(
        "--build", choices=build_names(), default=defaults.BUILD,
        help="which build of the P4 program the switch is to run (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--aggregation-address", metavar="ADDRESS", default=defaults.AGGREGATION_ADDRESS,
        help="IPv4 address that the switch answers to (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--switch-mac", metavar="MAC", default=defaults.SWITCH_MAC,
        help="MAC address that the switch answers ARP with (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--data-address", metavar="HOST:PORT",
        help="where workers send their data, if that is not the aggregation address and port "
        f"{constants.AGGREGATION_PORT}: the embedded switch's UDP socket, say",
    )  # fmt: skip
    parser.add_argument(
        "--wait", metavar="SECONDS", type=float, default=defaults.SWITCH_WAIT,
        help="for the switch to come up (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument(
        "--heartbeat-timeout", metavar="SECONDS", type=float, default=defaults.HEARTBEAT_TIMEOUT,
        help="silence after which a rank counts as lost (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument(
        "--hello-timeout", metavar="SECONDS", type=float, default=defaults.HELLO_TIMEOUT,
        help="for all ranks' packets to come through the switch once all have joined (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument(
        "--host", metavar="ADDRESS=PORT,MAC", action="append", default=[],
        help="a host behind the switch that is no worker, at this port of the switch; may be repeated",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Serves until SIGINT or SIGTERM.

    Raises:
        UsageError: an argument is not usable, or the port is taken.
        SwitchError: the switch does not answer, refuses the program or serves another controller.
    """
    settings = parse_settings(arguments)
    logging.basicConfig(stream=sys.stderr, format="controller: %(message)s", level=logging.INFO)
    asyncio.run(serve(settings))
    return 0


def parse_settings(arguments: argparse.Namespace) -> Settings:
    """Checks what argparse cannot. Raises UsageError."""
    try:
        aggregation_address = IPv4Address(arguments.aggregation_address)
    except ValueError:
        raise UsageError(
            f"--aggregation-address {arguments.aggregation_address}: not an IPv4 address like 10.0.0.254"
        ) from None
    try:
        switch_mac = parse_mac(arguments.switch_mac)
        hosts = tuple(parse_host(host) for host in arguments.host)
    except ValueError as error:
        raise UsageError(str(error)) from None
    for name in ("wait", "heartbeat_timeout", "hello_timeout"):
        if not 0 < getattr(arguments, name) < float("inf"):
            raise UsageError(f"--{name.replace('_', '-')} is a time in seconds above 0")
    if arguments.data_address is None:
        data_address = (str(aggregation_address), constants.AGGREGATION_PORT)
    else:
        data_address = split_address(arguments.data_address)
    split_address(arguments.switch)
    split_address(arguments.listen, least_port=0)
    return Settings(
        listen=arguments.listen,
        switch=arguments.switch,
        device_id=arguments.device_id,
        build=load_build(arguments.build),
        aggregation_address=aggregation_address,
        switch_mac=switch_mac,
        data_address=data_address,
        wait=arguments.wait,
        timing=Timing(
            heartbeat_timeout=arguments.heartbeat_timeout, hello_timeout=arguments.hello_timeout
        ),
        hosts=hosts,
    )  # fmt: skip


def split_address(text: str, least_port: int = 1) -> tuple[str, int]:
    """``HOST:PORT`` in its parts. Raises UsageError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not least_port <= int(port) < 1 << 16:
        raise UsageError(f"{text!r} is not HOST:PORT like 127.0.0.1:{defaults.CONTROLLER_PORT}")
    return host, int(port)


async def serve(settings: Settings) -> None:
    """The controller's life; see `run`."""
    stop = _stop_signal()
    build = settings.build
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])  # else a taken port is shared in silence
    port = _bind(server, settings.listen)
    hosts = HostTable(
        settings.hosts, int(settings.aggregation_address), settings.switch_mac, constants.MAX_HOSTS
    )
    leases = Leases(
        Capacity(
            slots=constants.SLOTS,
            jobs=constants.MAX_JOBS,
            endpoints=constants.MAX_ENDPOINTS,
            slots_least=defaults.SLOTS_LEAST,
        )
    )
    rules = Rules(
        max_ranks=constants.MAX_RANKS,
        lanes=build.lanes,
        data_address=settings.data_address,
        timing=settings.timing,
    )
    service = CoordinatorService(build, Jobs(rules, leases), hosts)
    link = SwitchLink(settings.switch, settings.device_id, build, hosts.base, service)
    service.link = link
    coordinator_pb2_grpc.add_CoordinatorServicer_to_server(service, server)
    tasks: list[asyncio.Task[None]] = []
    try:
        connecting = asyncio.create_task(link.connect(settings.wait))
        tasks.append(connecting)
        with patience(f"controller: waiting for the switch at {settings.switch} to run {build.name}"):
            await asyncio.wait([connecting, stop], return_when=asyncio.FIRST_COMPLETED)
        if stop.done():
            return
        connecting.result()
        await server.start()
        host, _ = split_address(settings.listen, least_port=0)
        print(
            f"controller: workers join at {host}:{port}, switch {settings.switch} runs {build.name}",
            flush=True,
        )
        serving = [asyncio.create_task(link.run()), asyncio.create_task(service.tick())]
        tasks += serving
        await asyncio.wait([*serving, stop], return_when=asyncio.FIRST_COMPLETED)
        service.shut_down()
        for task in serving:
            if task.done():
                task.result()
        await asyncio.wait([asyncio.create_task(link.drain())], timeout=STOP_GRACE)
    finally:
        await server.stop(grace=STOP_GRACE)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        link.close()


def _stop_signal() -> asyncio.Future[None]:
    """Done when the process is asked to end."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[None] = loop.create_future()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _finish, stop)
    return stop


def _finish(stop: asyncio.Future[None]) -> None:
    if not stop.done():
        stop.set_result(None)


def _bind(server: grpc.aio.Server, listen: str) -> int:
    """The port that `server` listens on. Raises UsageError."""
    host, port = split_address(listen, least_port=0)
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        # gRPC would say less, and say it on stderr too
        socket.create_server((host, port), family=family).close()
        bound: int = server.add_insecure_port(listen)
    except OSError as error:
        raise UsageError(
            f"cannot listen at {listen}: {error.strerror or error}; choose another --listen"
        ) from None
    except RuntimeError:
        raise UsageError(f"cannot listen at {listen}; choose another --listen") from None
    return bound
