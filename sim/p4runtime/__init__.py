"""A P4Runtime 1.4 server for the embedded switch.

Read it from the outside in: ``server`` (gRPC, threads), ``service`` (the calls and the stream),
``arbitration`` (who is the primary), ``device`` (pipeline configuration, order of reads and writes),
``pipeline`` (a P4Info with its program), then one file per kind of entity: ``tables`` with ``match``,
``counters``, ``replication``.

Offered: every SetForwardingPipelineConfig action, table entries and default entries with direct counters,
indirect counters, multicast groups, clone sessions, packet I/O, one role (the default one), and batches that
continue on error. Answered with UNIMPLEMENTED: other roles and atomicities, action profiles, meters, value
sets, registers (as on BMv2), digests, externs, translated types and classes of service.
"""

from switchreduce.sim.p4runtime.server import P4RuntimeServer

__all__ = ["P4RuntimeServer"]
