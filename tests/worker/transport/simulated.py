"""What simulated ranks contribute, and what the switch must answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from switchreduce.sim.job import SimulatedJob
from switchreduce.worker.transport.engine import Op, Segment


def queue_all(job: SimulatedJob, op: Op, contributions: np.ndarray) -> list[Segment]:
    """Queue rank r's contributions[r], uint32 (ranks, chunks, lanes), on its engine."""
    segments = []
    for engine, lanes in zip(job.engines, contributions, strict=True):
        segment = engine.allocate(op, lanes.shape[0])
        assert segment is not None
        segment.lanes[...] = lanes
        engine.queue(segment)
        segments.append(segment)
    return segments


def combined(op: Op, contributions: np.ndarray) -> np.ndarray:
    """What the switch must answer."""
    if op is Op.SUM:
        return contributions.sum(axis=0, dtype=np.uint32)
    if op is Op.OR:
        return np.bitwise_or.reduce(contributions, axis=0)
    return contributions.max(axis=0)


def perfect(*_: object) -> Sequence[float]:
    """A network that loses nothing and takes 10 us."""
    return (1e-5,)
