"""From integers to the lanes that the switch adds, and from its sums to the result."""

from typing import Literal

import numpy as np

from switchreduce.errors import SwitchError, UsageError
from switchreduce.worker.codec.arrays import Lanes, Values, Workspace, check_lanes, check_values, read_only
from switchreduce.worker.codec.kernels import (
    dequantise,
    encode_dense,
    encode_packed,
    encode_sketch,
    follow,
    quantise_dense,
    scatter,
)
from switchreduce.worker.codec.plan import Form, Plan, hash_arguments
from switchreduce.worker.codec.quantised import QuantisedBlock
from switchreduce.worker.codec.scale import BlockScale, power_of_two_factors

Op = Literal["sum", "mean"]

# per number of limbs, for each limb: (arithmetic right shift, mask)
_LIMBS = {
    1: ((np.int32(0), np.uint32(0xFFFF_FFFF)),),
    2: ((np.int32(0), np.uint32(0xFFFF)), (np.int32(16), np.uint32(0xFFFF_FFFF))),
}
_INT32 = np.iinfo(np.int32)


def encode(block: QuantisedBlock, plan: Plan, lanes: Lanes) -> None:
    """Write a rank's contribution to ``lanes`` (uint32[plan.lanes], overwritten).

    The block's index must lie inside the union that the plan is for. Raises SwitchError where a packed plan
    lacks one of the block's coordinates (for a sketch, ``decode`` notices).
    """
    if block.size != plan.size:
        raise UsageError(f"the block has {block.size} coordinates, the plan is for {plan.size}")
    check_lanes("lanes", lanes, np.uint32, plan.lanes)
    coordinates, values = read_only(block.coordinates), read_only(block.values)
    for limb, (shift, mask) in enumerate(_LIMBS[plan.limbs]):
        part = lanes[limb * plan.buckets : (limb + 1) * plan.buckets]
        if plan.form is Form.DENSE:
            encode_dense(coordinates, values, shift, mask, part)
        elif plan.form is Form.PACKED:
            index = read_only(block.index)
            placed = encode_packed(index, values, shift, mask, plan.coordinates, part)
            if placed != coordinates.size:
                raise SwitchError(
                    "a block's union lacks coordinates that this rank sent: packets were altered"
                )
        elif plan.form is Form.SKETCH:
            encode_sketch(coordinates, values, shift, mask, *hash_arguments(plan.layout, plan.seed), part)


def encode_values(x: Values, scale: BlockScale, lanes: Lanes) -> None:
    """Quantise a whole block straight to the lanes of ``plan_dense(x.size, scale.limbs)``.

    For jobs without an index; the same lanes as ``quantise`` and ``encode``, in one pass.
    """
    check_values(x)
    check_lanes("block", x, scale.dtype, x.size)
    check_lanes("lanes", lanes, np.uint32, x.size * scale.limbs)
    if scale.is_empty:
        lanes[:] = 0
        return
    for limb, (shift, mask) in enumerate(_LIMBS[scale.limbs]):
        part = lanes[limb * x.size : (limb + 1) * x.size]
        quantise_dense(read_only(x), *scale.factors, shift, mask, part)


def decode(
    lanes: Lanes,
    plan: Plan,
    scale: BlockScale,
    out: Values,
    op: Op = "sum",
    workspace: Workspace | None = None,
) -> int:
    """Turn the switch's sums into the block's result; returns -1.

    ``lanes`` (uint32[plan.lanes]) are used up; ``out`` (``scale.dtype``[plan.size]) is overwritten, zeros
    included. If an int32 sum does not fit int32, returns the index in the block of the first such
    coordinate instead and leaves ``out`` as it was.

    Raises UsageError for the mean of integers, and SwitchError if the sums of a sketch contradict each other:
    after peeling, every bucket must be zero, so lanes that were lost, added twice or encoded for another plan
    show up here.
    """
    check_values(out)
    check_lanes("block", out, scale.dtype, plan.size)
    check_lanes("lanes", lanes, np.uint32, plan.lanes)
    if op not in ("sum", "mean"):
        raise UsageError(f"op {op!r} is not 'sum' or 'mean'")
    if op == "mean" and scale.dtype.kind == "i":
        raise UsageError("the mean of int32 arrays is not an integer; use op='sum' or convert to float")
    if plan.form is Form.EMPTY or scale.is_empty:
        out[:] = 0
        return -1
    workspace = workspace or Workspace()
    sums = [_limb_sums(lanes, plan, limb, workspace) for limb in range(plan.limbs)]
    if plan.limbs == 2:
        return _write_two_limbs(sums[0], sums[1], plan, out)
    divisor = float(scale.world_size if op == "mean" else 1)
    factors = power_of_two_factors(-scale.shift)
    if plan.form is Form.DENSE:
        dequantise(read_only(sums[0]), divisor, *factors, out)
    else:
        coordinates = plan.coordinates if plan.form is Form.PACKED else plan.order
        scatter(read_only(sums[0]), read_only(coordinates), divisor, *factors, out)
    return -1


def _limb_sums(lanes: Lanes, plan: Plan, limb: int, workspace: Workspace) -> Lanes:
    """One limb's sums: of all coordinates (dense), of the union (packed) or in the plan's order (sketch)."""
    part = lanes[limb * plan.buckets : (limb + 1) * plan.buckets]
    if plan.form is not Form.SKETCH:
        return part
    sums: Lanes = workspace.take(f"sums{limb}", np.uint32, plan.order.size)
    follow(part, read_only(plan.order), *hash_arguments(plan.layout, plan.seed), sums)
    if part.max() != 0:
        raise SwitchError("a block's sums contradict each other: packets were altered; restart the job")
    return sums


def _write_two_limbs(low: Lanes, high: Lanes, plan: Plan, out: Values) -> int:
    """Recombine 16-bit limbs to 64-bit sums; the first overflow's index in the block, else -1.

    Plain NumPy: only integers whose sum may leave int32 come here.
    """
    totals = (high.view(np.int32).astype(np.int64) << 16) + low
    if plan.form is Form.SKETCH:
        coordinates = plan.order.astype(np.uint32)  # the lower half
    elif plan.form is Form.PACKED:
        coordinates = plan.coordinates
    else:
        coordinates = np.arange(plan.size, dtype=np.uint32)
    overflows = (totals < _INT32.min) | (totals > _INT32.max)
    if overflows.any():
        return int(coordinates[overflows].min())
    out[:] = 0
    out[coordinates] = totals
    return -1
