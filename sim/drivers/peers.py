"""Which peer address is which switch port."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from switchreduce.sim.drivers.udp_frames import PORTS

Address = tuple[str, int]

# A peer that has sent nothing for this long may lose its port to a new one, when all ports are taken.
IDLE_S = 60.0


class PeerTable:
    """Switch ports of peers: the lowest free number for a new peer, kept for as long as it is not needed.

    ``reserved`` ports are never given out, nor is 0, which P4 programs take for "no port".
    """

    def __init__(self, reserved: Iterable[int]) -> None:
        taken = {0, *reserved}
        self._free = [port for port in reversed(range(PORTS)) if port not in taken]
        self._ports: dict[Address, int] = {}
        self.addresses: dict[int, Address] = {}
        self._last_heard = np.full(PORTS, np.inf)

    def __len__(self) -> int:
        return len(self._ports)

    def port_of(self, address: Address, now: float) -> int | None:
        """The port of a peer that was just heard, None for a new one; ``now`` in seconds."""
        port = self._ports.get(address)
        if port is not None:
            self._last_heard[port] = now
        return port

    def admit(self, address: Address, now: float) -> int | None:
        """Gives a new peer a port; None when all are taken by peers heard in the last minute."""
        if self._free:
            port = self._free.pop()
        else:
            port = int(np.argmin(self._last_heard))
            if not now - self._last_heard[port] > IDLE_S:
                return None
            del self._ports[self.addresses[port]]
        self._ports[address] = port
        self.addresses[port] = address
        self._last_heard[port] = now
        return port
