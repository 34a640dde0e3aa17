"""From the switch's sums to the result.

In two steps, so that a caller's array changes only once everything is known to be right: ``collect`` takes
the sums out of the lanes and checks them, ``write`` writes what they come to.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from switchreduce.errors import SwitchError, UsageError
from switchreduce.worker.codec.arrays import Lanes, Values, check_lanes, check_values, read_only
from switchreduce.worker.codec.kernels import dequantise, follow, scatter
from switchreduce.worker.codec.plan import Form, Plan, hash_arguments
from switchreduce.worker.codec.scale import BlockScale, power_of_two_factors

Op = Literal["sum", "mean"]

_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class Sums:
    """The checked sums of a plan, in memory of their own.

    ``values``: uint32 (modulo 2**32), or int64 where they came in two limbs. ``where``: the coordinates,
    uint32 ascending, or uint64 with the coordinate in the lower half, in no order; None: all ``size``.
    """

    size: int
    values: NDArray[Any]
    where: NDArray[Any] | None

    def ascending(self) -> "Sums":
        """The same, in the order of the coordinates, so that they can be written in parts."""
        if self.where is None or self.where.dtype == np.uint32:
            return self
        where = self.where.astype(np.uint32)
        order = np.argsort(where)
        return Sums(self.size, self.values[order], where[order])

    @property
    def first_overflow(self) -> int:
        """The first coordinate whose sum does not fit int32, or -1."""
        if self.values.dtype != np.int64:
            return -1
        places = np.flatnonzero((self.values < _INT32.min) | (self.values > _INT32.max))
        if places.size == 0:
            return -1
        return int(places[0] if self.where is None else self.where.astype(np.uint32)[places].min())


def collect(lanes: Lanes, plan: Plan) -> Sums:
    """The sums in ``lanes`` (uint32[plan.lanes], used up).

    Raises SwitchError if the sums of a sketch contradict each other: after peeling, every bucket must be
    zero, so lanes that were lost, added twice or encoded for another plan show up here.
    """
    check_lanes("lanes", lanes, np.uint32, plan.lanes)
    where: NDArray[Any] | None = None
    if plan.form is Form.SKETCH:
        where = plan.order
    elif plan.form is not Form.DENSE:
        where = plan.coordinates
    limbs = [_limb_sums(lanes[i * plan.buckets : (i + 1) * plan.buckets], plan) for i in range(plan.limbs)]
    if len(limbs) == 1:
        return Sums(plan.size, limbs[0], where)
    low, high = limbs
    return Sums(plan.size, (high.view(np.int32).astype(np.int64) << 16) + low, where)


def _limb_sums(part: Lanes, plan: Plan) -> Lanes:
    if plan.form is not Form.SKETCH:
        return part.copy()
    sums = np.empty(plan.order.size, np.uint32)
    follow(part, read_only(plan.order), *hash_arguments(plan.layout, plan.seed), sums)
    if part.max() != 0:
        raise SwitchError("a block's sums contradict each other: packets were altered; restart the job")
    return sums


def write(sums: Sums, scale: BlockScale, out: Values, op: Op = "sum", start: int = 0) -> None:
    """Write the results for the coordinates from ``start`` on to ``out`` (``scale.dtype``), zeros included.

    Only sums in ascending order, or all at once, can be written in parts. Raises UsageError for the mean of
    integers. Sums that do not fit int32 wrap.
    """
    check_values(out)
    check_lanes("block", out, scale.dtype, out.size)
    if op not in ("sum", "mean"):
        raise UsageError(f"op {op!r} is not 'sum' or 'mean'")
    if op == "mean" and scale.dtype.kind == "i":
        raise UsageError("the mean of int32 arrays is not an integer; use op='sum' or convert to float")
    values, where = sums.values, sums.where
    if start != 0 or out.size != sums.size:
        if where is None:
            values = values[start : start + out.size]
        else:
            if where.dtype != np.uint32:
                raise UsageError("the sums of a sketch are in no order, so they are written all at once")
            first, last = np.searchsorted(where, [start, start + out.size])
            values, where = values[first:last], where[first:last]
    if scale.is_empty or values.size == 0:
        out[:] = 0
    elif values.dtype == np.int64:  # plain NumPy: only integers whose sum may leave int32 come here
        out[:] = 0
        out[... if where is None else where.astype(np.uint32) - np.uint32(start)] = values
    else:
        divisor = float(scale.world_size if op == "mean" else 1)
        factors = power_of_two_factors(-scale.shift)
        if where is None:
            dequantise(read_only(values), divisor, *factors, out)
        else:
            scatter(read_only(values), read_only(where), np.uint64(start), divisor, *factors, out)


def decode(lanes: Lanes, plan: Plan, scale: BlockScale, out: Values, op: Op = "sum") -> int:
    """``collect`` and ``write`` of one block; returns -1.

    If an int32 sum does not fit, returns the first such coordinate instead and leaves ``out`` as it was.
    """
    check_lanes("block", out, scale.dtype, plan.size)
    sums = collect(lanes, plan)
    overflow = sums.first_overflow
    if overflow < 0:
        write(sums, scale, out, op)
    return overflow
