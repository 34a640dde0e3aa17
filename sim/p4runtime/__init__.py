"""A P4Runtime server for the embedded switch."""

from switchreduce.sim.p4runtime.server import P4RuntimeServer

__all__ = ["P4RuntimeServer"]
