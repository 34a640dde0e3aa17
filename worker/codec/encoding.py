"""From integers to the lanes that the switch adds."""

import numpy as np

from switchreduce.errors import SwitchError, UsageError
from switchreduce.worker.codec.arrays import Lanes, Values, check_lanes, check_values, read_only
from switchreduce.worker.codec.kernels import (
    encode_dense,
    encode_packed,
    encode_sketch,
    quantise_dense,
)
from switchreduce.worker.codec.plan import Form, Plan, hash_arguments
from switchreduce.worker.codec.quantised import QuantisedBlock
from switchreduce.worker.codec.scale import BlockScale

# per number of limbs, for each limb: (arithmetic right shift, mask)
_LIMBS = {
    1: ((np.int32(0), np.uint32(0xFFFF_FFFF)),),
    2: ((np.int32(0), np.uint32(0xFFFF)), (np.int32(16), np.uint32(0xFFFF_FFFF))),
}


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
