"""A sketch that is sent before its union is known, so that index and values share one round trip.

Its size rests on a guess of the union's. What then does not peel is known to every rank from the union alone,
so those coordinates can travel again, packed, and be taken out of the sketch: the result is exact however bad
the guess was.
"""

import numpy as np
from numpy.typing import NDArray

from switchreduce.worker.codec.arrays import Lanes, Workspace, check_lanes, read_only
from switchreduce.worker.codec.kernels import WORD, encode_sketch, peel
from switchreduce.worker.codec.layout import layout_for
from switchreduce.worker.codec.plan import Form, Plan, hash_arguments
from switchreduce.worker.codec.quantised import QuantisedBlock
from switchreduce.worker.codec.results import Sums, collect

# A blind sketch is made for so much larger a union than expected: unions of one layer change by a few percent
# from step to step, and with some buckets to spare a sketch peels almost always, not three times of four.
_SPARE_PART = 8
_SPARE = 8
_NOTHING = np.empty(0, np.uint32)


def plan_blind(expected: int, size: int) -> Plan:
    """A sketch, one limb, for a union of about ``expected`` coordinates of a block of ``size``."""
    layout = layout_for(expected + expected // _SPARE_PART + _SPARE)
    return Plan(Form.SKETCH, size, 1, layout.buckets, layout, 0, np.empty(0, np.uint64), _NOTHING)


def peel_blind(
    plan: Plan, union: NDArray[np.uint32], workspace: Workspace
) -> tuple[Plan, NDArray[np.uint32]]:
    """(the plan with the order in which ``union`` peels as far as it does, the coordinates that do not)."""
    check_lanes("union", union, np.uint32, union.size)
    order = np.empty(union.size, np.uint64)
    buckets = workspace.take("buckets", np.uint64, plan.buckets)
    queue = workspace.take("queue", np.uint32, plan.buckets + 1)
    count = peel(read_only(union), *hash_arguments(plan.layout, plan.seed), buckets, queue, order)
    order = order[:count]
    rest = _NOTHING if count == union.size else np.setdiff1d(union, order.astype(np.uint32))
    return Plan(Form.SKETCH, plan.size, 1, plan.buckets, plan.layout, plan.seed, order, _NOTHING), rest


def part_of(block: QuantisedBlock, coordinates: NDArray[np.uint32]) -> QuantisedBlock:
    """The block without its values at other than ``coordinates``."""
    kept = np.isin(block.coordinates, coordinates)
    where = block.coordinates[kept]
    index = np.zeros_like(block.index)
    np.bitwise_or.at(index, where // WORD, np.uint32(1) << (where % WORD).astype(np.uint32))
    return QuantisedBlock(block.size, index, where, block.values[kept])


def collect_blind(lanes: Lanes, plan: Plan, rest: NDArray[np.uint32], rest_sums: Lanes) -> Sums:
    """``collect`` for what ``peel_blind`` returned, with the sums of the coordinates that did not peel.

    ``lanes`` are used up. Raises SwitchError if the sums contradict each other.
    """
    check_lanes("rest_sums", rest_sums, np.uint32, rest.size)
    if rest.size == 0:
        return collect(lanes, plan)
    again = np.empty(plan.buckets, np.uint32)
    values = read_only(rest_sums.view(np.int32))
    everything = (np.int32(0), np.uint32(0xFFFF_FFFF))
    encode_sketch(read_only(rest), values, *everything, *hash_arguments(plan.layout, plan.seed), again)
    lanes -= again
    peeled = collect(lanes, plan)
    where = np.concatenate([plan.order, rest.astype(np.uint64)])
    return Sums(plan.size, np.concatenate([peeled.values, rest_sums]), where)
