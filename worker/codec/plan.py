"""The plan of a block: the form its sums travel in, chosen by every rank alike from the union alone."""

from dataclasses import dataclass
from enum import Enum
from itertools import count as count_from

import numpy as np
from numpy.typing import NDArray

from switchreduce.worker.codec.arrays import Workspace, check_lanes, read_only
from switchreduce.worker.codec.kernels import peel
from switchreduce.worker.codec.layout import Layout, layout_for


class Form(Enum):
    """How a block's sums are laid out in lanes."""

    EMPTY = "empty"  # nothing to send: the union is empty
    DENSE = "dense"  # every coordinate of the block in order
    PACKED = "packed"  # every coordinate of the union in order
    SKETCH = "sketch"  # buckets that peel


@dataclass(frozen=True)
class Plan:
    """How one block's sums travel and how they decode.

    ``size``: coordinates of the block. ``limbs``: lanes per value. ``buckets``: lanes of one limb; limb l
    has the lanes [l * buckets, (l + 1) * buckets). ``coordinates`` (uint32[|U|]) is the union if packed. For
    a sketch, ``order`` (uint64[|U|]) lists the union in the order in which it peels: the coordinate in the
    lower half, the bucket that is then its own in the upper.
    """

    form: Form
    size: int
    limbs: int
    buckets: int
    layout: Layout
    seed: int
    order: NDArray[np.uint64]
    coordinates: NDArray[np.uint32]

    @property
    def lanes(self) -> int:
        """Lanes that a rank sends and receives for the block."""
        return self.buckets * self.limbs


_NO_LAYOUT = Layout(0, 0)
_NO_ORDER = np.empty(0, np.uint64)
_NO_COORDINATES = np.empty(0, np.uint32)


def plan_empty(size: int, limbs: int = 1) -> Plan:
    """The plan for a block of zeros."""
    return Plan(Form.EMPTY, size, limbs, 0, _NO_LAYOUT, 0, _NO_ORDER, _NO_COORDINATES)


def plan_dense(size: int, limbs: int = 1) -> Plan:
    """The plan that sends every coordinate; needs no union."""
    return Plan(Form.DENSE, size, limbs, size, _NO_LAYOUT, 0, _NO_ORDER, _NO_COORDINATES)


def plan_packed(union: NDArray[np.uint32], size: int, limbs: int = 1) -> Plan:
    """The plan that sends the values of ``union`` (the coordinates, ascending) in order: |U| lanes a limb.

    Once every rank knows the union, no hash is needed to say which lane is whose.
    """
    check_lanes("union", union, np.uint32, union.size)
    if union.size == 0:
        return plan_empty(size, limbs)
    if union.size >= size:
        return plan_dense(size, limbs)
    return Plan(Form.PACKED, size, limbs, union.size, _NO_LAYOUT, 0, _NO_ORDER, read_only(union))


def plan_sketch(
    union: NDArray[np.uint32], size: int, limbs: int = 1, workspace: Workspace | None = None
) -> Plan:
    """The smallest sketch that peels for ``union`` (the coordinates, ascending).

    It takes the first seed 0, 1, 2, ... for which the union peels completely, so decoding cannot fail.
    Whether it does depends on the union and the seed alone, hence all ranks find the same seed without a
    message. After every TRIES_PER_SIZE failures the sketch grows; once it would be no smaller than the block,
    the plan is dense, so this always ends. (Expected number of tries: see layout.py.)
    """
    check_lanes("union", union, np.uint32, union.size)
    workspace = workspace or Workspace()
    count = union.size
    if count == 0:
        return plan_empty(size, limbs)
    coordinates = read_only(union)
    order = np.empty(count, np.uint64)
    for seed in count_from():
        layout = layout_for(count, seed)
        if layout.buckets >= size:
            break
        buckets = workspace.take("buckets", np.uint64, layout.buckets)
        queue = workspace.take("queue", np.uint32, layout.buckets + 1)
        if peel(coordinates, *hash_arguments(layout, seed), buckets, queue, order) == count:
            return Plan(Form.SKETCH, size, limbs, layout.buckets, layout, seed, order, _NO_COORDINATES)
    return plan_dense(size, limbs)


def hash_arguments(layout: Layout, seed: int) -> tuple[np.uint64, np.uint64, np.uint64]:
    """(seed, segments, length) as the kernels take them."""
    return np.uint64(seed), np.uint64(layout.segments), np.uint64(layout.length)
