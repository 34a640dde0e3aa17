"""The embedded switch behind its own P4Runtime server, packets handed to it one by one."""

from __future__ import annotations

from switchreduce.sim.drivers import DataPlane
from switchreduce.sim.p4runtime import P4RuntimeServer
from switchreduce.sim.target import Switch

from .bmv2 import CPU_PORT, Out


class _Ports(DataPlane):
    """A data plane without ports: it keeps the switch that the server installs."""

    def __init__(self) -> None:
        super().__init__([], cpu_port=CPU_PORT)
        self.switch: Switch | None = None

    def install(self, switch: Switch) -> None:
        self.switch = switch


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

    def close(self) -> None:
        self._server.stop()
        self._ports.close()
