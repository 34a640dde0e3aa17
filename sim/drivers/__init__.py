"""Port drivers: how frames get into the embedded switch and out of it."""

from switchreduce.sim.drivers.capture import PortCapture
from switchreduce.sim.drivers.dataplane import DataPlane, PortDriver
from switchreduce.sim.drivers.impairment import Impairment, Rates
from switchreduce.sim.drivers.interface import InterfaceDriver
from switchreduce.sim.drivers.udp import UdpDriver

__all__ = ["DataPlane", "Impairment", "InterfaceDriver", "PortCapture", "PortDriver", "Rates", "UdpDriver"]
