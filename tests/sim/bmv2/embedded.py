"""The embedded switch behind its own P4Runtime server, packets handed to it one by one."""

from __future__ import annotations

import threading

from switchreduce.sim.drivers import DataPlane
from switchreduce.sim.p4runtime import P4RuntimeServer
from switchreduce.sim.target import Switch

from .bmv2 import CPU_PORT, PATIENCE_S, Out


class _Ports(DataPlane):
    """A data plane without ports: it keeps the switch that the server installs and what leaves for
    packet-outs."""

    def __init__(self) -> None:
        super().__init__([], cpu_port=CPU_PORT)
        self.switch: Switch | None = None
        self.left: list[Out] = []
        self.changed = threading.Condition()

    def install(self, switch: Switch) -> None:
        self.switch = switch

    def inject(self, frame: bytes) -> bool:
        assert self.switch is not None
        with self.changed:
            self.left += self.switch.process(CPU_PORT, frame)
            self.changed.notify()
        return True


class Embedded:
    """A switch without a program. `address` is where its P4Runtime server listens."""

    def __init__(self) -> None:
        self._ports = _Ports()
        self._server = P4RuntimeServer(self._ports, address="127.0.0.1:0", device_id=0)
        self._server.start()
        self.address = self._server.address

    def process(self, port: int, frame: bytes) -> list[Out]:
        """What leaves the switch for one frame, in order."""
        assert self._ports.switch is not None
        return self._ports.switch.process(port, frame)

    def take(self, count: int) -> list[Out]:
        """What has left for packet-outs, once these are at least `count` frames or time is up."""
        with self._ports.changed:
            self._ports.changed.wait_for(lambda: len(self._ports.left) >= count, PATIENCE_S)
            left, self._ports.left = self._ports.left, []
        return left

    def close(self) -> None:
        self._server.stop()
        self._ports.close()
