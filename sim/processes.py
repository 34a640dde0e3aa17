"""Start and stop commands as processes, and wait until they say that they are ready."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from switchreduce.errors import SwitchReduceError

LINES_KEPT = 200
STOP_TIMEOUT = 5.0  # s from SIGTERM to SIGKILL
LOOK_INTERVAL = 0.1  # s between looks whether another process still runs
SWITCHREDUCE = (sys.executable, "-m", "switchreduce.cli")


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """In this block SIGINT, SIGTERM and SIGHUP exit as any error does, so that what was started gets stopped.

    The first one raises SystemExit with the shell's status for it; later ones do not disturb the stopping.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def leave(number: int, _: object) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    earlier = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


class Process:
    """A command that runs beside this one; its output is read, kept and searched.

    `program` comes before the arguments: `switchreduce` unless another is named.
    """

    def __init__(
        self, name: str, *arguments: str, program: Sequence[str] = SWITCHREDUCE, echo: bool = False
    ) -> None:
        self.name = name
        self._echo = echo
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._changed = threading.Condition()
        self._ended = False  # all output is read
        self._popen = subprocess.Popen(
            [*program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            with self._changed:
                self._lines.append(line.rstrip("\n"))
                self._changed.notify_all()
            if self._echo:
                print(f"  {self.name}: {line.rstrip()}", file=sys.stderr, flush=True)
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    @property
    def output(self) -> str:
        with self._changed:
            return "\n".join(self._lines)

    def wait_for(self, pattern: str, timeout: float, needed: Process | None = None) -> re.Match[str]:
        """The first match of `pattern` in the output.

        Raises SwitchReduceError, with the last line that was said, if the process ends first, or one that is
        `needed` for it, or if `timeout` seconds pass.
        """
        found: list[re.Match[str]] = []

        def look() -> bool:
            match = re.search(pattern, "\n".join(self._lines))
            if match:
                found.append(match)
            return bool(match) or self._ended

        deadline = time.monotonic() + timeout
        with self._changed:
            while not look() and (left := deadline - time.monotonic()) > 0:
                if needed is not None and not needed.running:
                    break
                self._changed.wait(left if needed is None else min(left, LOOK_INTERVAL))
        if found:
            return found[0]
        if needed is not None and not needed.running:
            needed.wait()  # for its last words
            raise SwitchReduceError(f"{needed.name} stopped: {needed.last_line or 'no word'}")
        if self._ended:
            raise SwitchReduceError(f"{self.name} stopped: {self.last_line or 'no word'}")
        raise SwitchReduceError(
            f"{self.name} was not ready within {timeout:g} s: {self.last_line or 'no word'}"
        )

    @property
    def last_line(self) -> str:
        with self._changed:
            return next((line for line in reversed(self._lines) if line.strip()), "")

    def wait(self, timeout: float | None = None) -> int:
        """The exit status. Raises SwitchReduceError if it still runs after `timeout` seconds."""
        try:
            status = self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise SwitchReduceError(f"{self.name} did not finish within {timeout:g} s") from None
        self._reader.join(STOP_TIMEOUT)
        return status

    def kill(self) -> None:
        """kill -9, as a crash would."""
        self._popen.kill()
        self._popen.wait()

    def send_signal(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def stop(self) -> None:
        """Ask it to end, and make it end if it does not."""
        if self._popen.poll() is None:
            self._popen.terminate()
            try:
                self._popen.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._popen.kill()
                self._popen.wait()
        self._reader.join(STOP_TIMEOUT)

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
