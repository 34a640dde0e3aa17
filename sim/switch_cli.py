"""``switchreduce switch``: the embedded switch as a process, used like ``simple_switch_grpc``."""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import math
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from switchreduce.errors import SwitchError, UnsupportedProgramError, UsageError
from switchreduce.sim.drivers import (
    DataPlane,
    Impairment,
    InterfaceDriver,
    PortCapture,
    PortDriver,
    Rates,
    UdpDriver,
)
from switchreduce.sim.drivers.udp import SOCKET_BUFFER_BYTES
from switchreduce.sim.p4runtime import P4RuntimeServer
from switchreduce.sim.target import Switch, load_program

MAX_PORT = 511  # v1model's port numbers have 9 bits

DESCRIPTION = """\
Runs a compiled P4_16 v1model program in this process and offers it over P4Runtime. The options are those of
BMv2's simple_switch_grpc (without the '--' in front of the target's own); --udp adds ports that need no root.
"""

EXAMPLES = """\
examples:
  switchreduce switch --no-p4 --cpu-port 510 --udp 127.0.0.1:21330
      wait for a controller to bring the program; every address that sends to UDP port 21330 is a switch port
  sudo switchreduce switch --no-p4 --cpu-port 510 -i 1@veth1 -i 2@veth2
      ports 1 and 2 on network interfaces
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options to ``parser``."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "json", nargs="?", type=Path, help="the program to start with, as BMv2 JSON; not with --no-p4"
    )
    parser.add_argument(
        "--no-p4", action="store_true", help="start without a program; a controller sets it over P4Runtime"
    )
    parser.add_argument(
        "--device-id",
        type=_unsigned,
        default=0,
        metavar="ID",
        help="P4Runtime device id (default 0, as simple_switch_grpc has it; p4runtime-shell asks for 1)",
    )
    parser.add_argument(
        "--cpu-port",
        type=_port,
        metavar="PORT",
        help="port number of the controller, for packet-in and packet-out; without it there are none",
    )
    parser.add_argument(
        "--drop-port", type=_port, default=MAX_PORT, metavar="PORT", help="port that drops (default 511)"
    )
    parser.add_argument(
        "-i",
        "--interface",
        action="append",
        type=_port_at_interface,
        default=[],
        metavar="PORT@IFACE",
        help="attach a network interface as a port (root); may be given several times",
    )
    parser.add_argument(
        "--grpc-server-addr",
        default="127.0.0.1:9559",
        metavar="HOST:PORT",
        help="P4Runtime address (default 127.0.0.1:9559; port 0 takes a free one). Unlike with "
        "simple_switch_grpc's 0.0.0.0, only this machine reaches it, because whoever does reach it rules the "
        "switch, without a password",
    )
    parser.add_argument(
        "--udp",
        type=_udp_address,
        metavar="HOST:PORT[@IP:PORT]",
        help="ports over UDP: each address that sends to HOST:PORT becomes a port, numbered from 1, and the "
        "program sees its datagrams with made-up Ethernet and IPv4 headers, sent to @IP:PORT (default: "
        "HOST:PORT itself)",
    )
    parser.add_argument(
        "--pcap",
        nargs="?",
        type=Path,
        const=Path("."),
        metavar="DIR",
        help="write what enters and leaves each port to a file in DIR (default: here): IFACE.pcap, "
        "and port1.pcap and so on for --udp; files of these names are replaced. One file holds both "
        "directions, where simple_switch_grpc writes one for each",
    )
    experiments = parser.add_argument_group(
        "for experiments", "lose, double or swap UDP packets on purpose, in both directions"
    )
    for option in ("loss", "duplicate", "reorder"):
        experiments.add_argument(
            f"--{option}", type=_probability, default=0.0, metavar="P", help="probability per packet, 0 to 1"
        )
    experiments.add_argument("--seed", type=_unsigned, default=0, help="makes them reproducible (default 0)")
    parser.add_argument(
        "--stats",
        nargs="?",
        type=_seconds,
        const=0.0,
        metavar="SECONDS",
        help="print packet counts at the end, and every SECONDS seconds if given",
    )


def run(args: argparse.Namespace) -> int:
    """Runs the switch until SIGINT or SIGTERM; the exit status. Raises SwitchReduceError."""
    _check(args)
    # Everything that can fail for the user's reasons comes before the first thread.
    switch = None if args.no_p4 else _load(args)
    with contextlib.ExitStack() as stack:
        drivers = _open_drivers(args, stack)
        dataplane = DataPlane(drivers, args.cpu_port, _open_capture(args, stack))
        stack.callback(dataplane.close)
        server = P4RuntimeServer(
            dataplane,
            address=args.grpc_server_addr,
            device_id=args.device_id,
            drop_port=args.drop_port,
            progress=_progress,
        )
        stack.callback(server.stop)
        if switch is not None:
            dataplane.install(switch)
        with _stop_on_signals() as stop:
            server.start()
            print(_ready_line(server, drivers), flush=True)
            _run_until_stopped(dataplane, server, stop, args.stats)
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.no_p4 and args.json is not None:
        raise UsageError("give a program or --no-p4, not both")
    if not args.no_p4 and args.json is None:
        raise UsageError("give the program's BMv2 JSON file, or --no-p4 to have a controller bring it")
    special = {"--cpu-port": args.cpu_port, "--drop-port": args.drop_port}
    taken: dict[int, str] = {}
    for name, port in [*special.items(), *((f"-i {p}@{i}", p) for p, i in args.interface)]:
        if port is None:
            continue
        if port in taken:
            raise UsageError(f"{name} and {taken[port]} have the same port number {port}")
        taken[port] = name
    if args.udp is None and (args.loss or args.duplicate or args.reorder):
        raise UsageError("--loss, --duplicate and --reorder are for --udp ports: add --udp HOST:PORT")


def _load(args: argparse.Namespace) -> Switch:
    try:
        data = args.json.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {args.json}: {error.strerror}") from error
    try:
        program = load_program(data)
    except (UnsupportedProgramError, ValueError) as error:
        raise UsageError(f"{args.json}: {error}") from error
    return Switch(program, drop_port=args.drop_port, progress=_progress)


def _open_drivers(args: argparse.Namespace, stack: contextlib.ExitStack) -> list[PortDriver]:
    drivers: list[PortDriver] = []
    for port, interface in args.interface:
        drivers.append(InterfaceDriver(port, interface))
        stack.callback(drivers[-1].close)
    if args.udp is not None:
        bind, advertised = args.udp
        rates = Rates(args.loss, args.duplicate, args.reorder)
        reserved = {args.drop_port, *(port for port, _ in args.interface)}
        if args.cpu_port is not None:
            reserved.add(args.cpu_port)
        udp = UdpDriver(
            bind,
            advertised=advertised,
            reserved=reserved,
            impairment=Impairment(rates, args.seed) if rates.any else None,
        )
        stack.callback(udp.close)
        drivers.append(udp)
        _progress(_describe(udp))
        if rates.any:
            _progress("packets are lost, doubled or swapped on purpose: for experiments only")
    return drivers


def _open_capture(args: argparse.Namespace, stack: contextlib.ExitStack) -> PortCapture | None:
    if args.pcap is None:
        return None
    capture = PortCapture(args.pcap, dict(args.interface), _progress)
    stack.callback(capture.close)
    _progress(f"captures every port to {args.pcap}")
    return capture


def _describe(udp: UdpDriver) -> str:
    """What the kernel gave the UDP socket."""
    line = f"udp receive buffer {udp.buffer_bytes // 1024} KiB"
    if udp.buffer_bytes < SOCKET_BUFFER_BYTES:
        line += f" of {SOCKET_BUFFER_BYTES // 1024} (root may raise net.core.rmem_max)"
    return f"{line}, segmentation offload {'on' if udp.segmentation else 'not there'}"


def _ready_line(server: P4RuntimeServer, drivers: list[PortDriver]) -> str:
    """The line that tells a parent process that the switch takes calls and packets."""
    places = ", ".join(driver.place for driver in drivers) or "no port (--udp or -i gives it some)"
    return f"switch: P4Runtime on {server.address}, data on {places}"


def _run_until_stopped(
    dataplane: DataPlane, server: P4RuntimeServer, stop: threading.Event, stats: float | None
) -> None:
    failures: list[BaseException] = []

    def carry_packets() -> None:
        try:
            dataplane.run(stop)
        except BaseException as error:
            failures.append(error)
        finally:
            stop.set()

    carrier = threading.Thread(target=carry_packets, name="dataplane")
    carrier.start()
    try:
        while not stop.wait(stats or None):
            _print_stats(dataplane, server)
    finally:
        stop.set()
        carrier.join()
    if stats is not None:
        _print_stats(dataplane, server)
    if failures:
        raise SwitchError(f"the data plane stopped: {failures[0]}") from failures[0]


def _print_stats(dataplane: DataPlane, server: P4RuntimeServer) -> None:
    for line in [*dataplane.summary(), server.summary()]:
        print(line, flush=True)


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; their earlier handlers are back afterwards."""
    stop = threading.Event()
    earlier = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in earlier:
        signal.signal(number, lambda *_: stop.set())
    try:
        yield stop
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _progress(line: str) -> None:
    print(f"switch: {line}", file=sys.stderr, flush=True)


# Parsers of option values: argparse prints their ArgumentTypeError as the one-line error.


def _unsigned(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**64:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number in 0..2^64-1")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port number in 1..{MAX_PORT}")
    return int(text)


def _probability(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= float(text) <= 1:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a probability in 0..1")


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")


def _port_at_interface(text: str) -> tuple[int, str]:
    port, at, interface = text.partition("@")
    if not at or not interface or not port.isdecimal() or int(port) > MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not PORT@IFACE, such as 1@veth1")
    return int(port), interface


def _udp_address(text: str) -> tuple[tuple[str, int], tuple[str, int] | None]:
    bind, at, advertised = text.partition("@")
    host, port = _host_port(bind)
    if not at:
        return (host, port), None
    shown = _host_port(advertised)
    try:
        ipaddress.IPv4Address(shown[0])
    except ValueError:
        raise argparse.ArgumentTypeError(f"{shown[0]!r} is not an IPv4 address") from None
    return (host, port), shown


def _host_port(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:21330")
    return host, int(port)
