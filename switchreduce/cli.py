"""The `switchreduce` command."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from switchreduce import __version__
from switchreduce.errors import SwitchReduceError

# Each command's module has add_arguments(parser) and run(arguments) -> exit status. Only the chosen one is
# imported, as numba and gRPC take a second.
COMMANDS = {
    "demo": (
        "switchreduce.sim.demo",
        "start a switch, a controller and workers here, and sum real gradients",
    ),
    "switch": ("switchreduce.sim.switch_cli", "run the embedded P4 switch"),
    "controller": ("switchreduce.controller.cli", "program a switch and admit workers to it"),
    "worker": ("switchreduce.worker.cli", "sum arrays with the other ranks of a job"),
    "bench": ("switchreduce.sim.bench.cli", "measure codecs, switches and the wire against references"),
}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; prints help or usage and exits as argparse does."""
    parser = argparse.ArgumentParser(
        prog="switchreduce",
        description="Lossless compressed allreduce of gradients inside a P4 switch.",
        epilog="`switchreduce COMMAND --help` says more. `switchreduce demo` shows the whole.",
    )
    parser.add_argument("--version", action="version", version=f"switchreduce {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((a for a in arguments if not a.startswith("-")), None)
    for name, (module, summary) in COMMANDS.items():
        command = subparsers.add_parser(
            name, help=summary, description=summary[0].upper() + summary[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        command.add_argument("--debug", action="store_true", help="show the trace of an error")
        if name == chosen:
            loaded = importlib.import_module(module)
            loaded.add_arguments(command)
            command.set_defaults(run=loaded.run)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the return value is the exit status."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        status: int = options.run(options)
        print(end="", flush=True)  # so that a full disk or a closed pipe shows here
        return status
    except BrokenPipeError:
        # who read the output wants no more, and Python would flush what is left once more when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (SwitchReduceError, OSError, MemoryError) as error:
        if options.debug:
            raise
        print(f"switchreduce {options.command}: error: {error or 'out of memory'}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
