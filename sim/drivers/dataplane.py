"""The loop that moves frames between port drivers, the switch and the controller."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from switchreduce.sim.drivers.capture import PortCapture
from switchreduce.sim.target import Frames, Switch

# A batch: 16 super-datagrams of 64 KiB with their headers.
BATCH_FRAMES = 2048
BATCH_BYTES = 2 * 2**20

# A frame may leave as many replicas. Memory that no frame reaches costs nothing.
OUTGOING_FRAMES = 8 * BATCH_FRAMES
OUTGOING_BYTES = 16 * BATCH_BYTES
MAX_OUTGOING_BYTES = 2**30

MAX_WAITING_PACKET_OUTS = 1024

# How long the loop sleeps at most before it looks whether it should stop.
POLL_S = 0.2


class PortDriver(Protocol):
    """A way into and out of the switch for some of its ports.

    ``owned`` bool[512] says which ports; ``socket`` is polled for frames; ``place`` names it for people.
    """

    socket: socket.socket
    owned: NDArray[np.bool_]
    place: str

    def receive(self, frames: Frames) -> None:
        """Fills the empty ``frames`` with frames that wait and sets its ``count``; never blocks."""

    def send(self, frames: Frames, selected: NDArray[np.int64]) -> None:
        """Sends the frames with the given indices, all for owned ports, in that order."""

    def close(self) -> None: ...

    def summary(self) -> str:
        """One line for an operator: packets in and out, and those lost by reason."""


@dataclass
class DataPlaneCounters:
    """Frames since the start."""

    no_program: int = 0  # came in before a pipeline was set
    no_port: int = 0  # left on a port that no driver has
    too_many_replicas: int = 0  # would have become more frames than memory for them
    packets_out: int = 0  # from a controller


class DataPlane:
    """Runs a switch on port drivers, in the thread that calls ``run``.

    ``on_packet_in`` is called, in that thread, with each frame that leaves on ``cpu_port``. The switch may be
    replaced while the loop runs. ``capture`` gets what comes from and goes to the drivers.
    """

    def __init__(
        self,
        drivers: Sequence[PortDriver],
        cpu_port: int | None = None,
        capture: PortCapture | None = None,
    ) -> None:
        self.cpu_port = cpu_port
        self.on_packet_in: Callable[[bytes], None] = lambda frame: None
        self.counters = DataPlaneCounters()
        self._drivers = tuple(drivers)
        self._capture = capture
        self._switch: Switch | None = None
        self._packet_outs: deque[bytes] = deque()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._incoming = Frames.allocate(BATCH_FRAMES, BATCH_BYTES)
        self._outgoing = Frames.allocate(OUTGOING_FRAMES, OUTGOING_BYTES)
        self._start_ns = time.monotonic_ns()

    def install(self, switch: Switch) -> None:
        """Lets the packets from now on run through ``switch``. May be called from any thread."""
        self._switch = switch

    def inject(self, frame: bytes) -> bool:
        """Queues a frame to enter on the CPU port; False when too many wait. From any thread."""
        if len(self._packet_outs) >= MAX_WAITING_PACKET_OUTS or len(frame) > self._incoming.data.size:
            return False
        self._packet_outs.append(frame)
        self._wake()
        return True

    def run(self, stop: threading.Event) -> None:
        """Moves frames until ``stop`` is set (noticed within POLL_S seconds)."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_reader, selectors.EVENT_READ, None)
            for driver in self._drivers:
                selector.register(driver.socket, selectors.EVENT_READ, driver)
            while not stop.is_set():
                for key, _ in selector.select(POLL_S):
                    if key.data is None:
                        self._run_packet_outs()
                    else:
                        self._incoming.clear()
                        key.data.receive(self._incoming)
                        if self._capture is not None:
                            self._capture.record(self._incoming)
                        self._process()

    def close(self) -> None:
        """Closes the drivers; call it when ``run`` has returned."""
        for driver in self._drivers:
            driver.close()
        self._wake_reader.close()
        self._wake_writer.close()

    def summary(self) -> list[str]:
        """Lines for an operator: one per driver, the capture's, then the data plane's own."""
        c = self.counters
        own = (
            f"switch: {c.packets_out} packet-outs; lost: {c.no_program} no program, {c.no_port} no port, "
            f"{c.too_many_replicas} too many replicas"
        )
        capture = [] if self._capture is None else [self._capture.summary()]
        return [driver.summary() for driver in self._drivers] + [*capture, own]

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            self._wake_writer.send(b"\0")

    def _run_packet_outs(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_reader.recv(4096)
        assert self.cpu_port is not None
        while self._packet_outs:
            frame = self._packet_outs.popleft()
            self._incoming.clear()
            self._incoming.append(self.cpu_port, frame)
            self.counters.packets_out += 1
            self._process()

    def _process(self) -> None:
        """Runs the incoming batch through the switch and hands on what leaves it."""
        incoming = self._incoming
        switch = self._switch
        if switch is None:
            self.counters.no_program += incoming.count
            return
        while incoming.cursor < incoming.count:
            now_us = (time.monotonic_ns() - self._start_ns) // 1000
            self._outgoing.clear()
            try:
                switch.process_batch(incoming, self._outgoing, now_us)
            except ValueError:
                self._make_room()
                continue
            self._dispatch(self._outgoing)

    def _make_room(self) -> None:
        """Doubles the outgoing batch, which does not hold the replicas of the next frame; that frame is
        dropped when the batch is as large as it may get."""
        outgoing = self._outgoing
        if outgoing.data.size < MAX_OUTGOING_BYTES:
            self._outgoing = Frames.allocate(2 * outgoing.offset.size, 2 * outgoing.data.size)
        else:
            self.counters.too_many_replicas += 1
            self._incoming.cursor += 1

    def _dispatch(self, outgoing: Frames) -> None:
        ports = outgoing.port[: outgoing.count]
        handled = 0
        for driver in self._drivers:
            selected = np.flatnonzero(driver.owned[ports])
            if selected.size:
                if self._capture is not None:
                    self._capture.record(outgoing, selected)
                driver.send(outgoing, selected)
                handled += selected.size
        if handled == outgoing.count:
            return
        if self.cpu_port is not None:
            for index in np.flatnonzero(ports == self.cpu_port):
                start = outgoing.offset[index]
                self.on_packet_in(outgoing.data[start : start + outgoing.length[index]].tobytes())
                handled += 1
        self.counters.no_port += outgoing.count - handled
