"""Compile every kernel of the codec ahead of time."""

from typing import Any

import numpy as np

from switchreduce.worker.codec.arrays import DTYPES, Workspace
from switchreduce.worker.codec.encoding import encode, encode_values
from switchreduce.worker.codec.exact import compose, digitise, list_values
from switchreduce.worker.codec.exact_scale import ExactScale, scan_exact
from switchreduce.worker.codec.index import SHAPES, UnionSearch, look
from switchreduce.worker.codec.plan import plan_dense, plan_packed, plan_sketch
from switchreduce.worker.codec.quantised import quantise
from switchreduce.worker.codec.results import decode
from switchreduce.worker.codec.scale import BlockScale, scan


def warm_up() -> None:
    """Run every kernel once for every dtype, so that no later call compiles.

    The first time on a machine this compiles (seconds); afterwards it loads numba's cache (a fraction of a
    second).
    """
    workspace = Workspace()
    for dtype in DTYPES:
        x = np.zeros(64, dtype)
        x[3] = 1
        scale = BlockScale.from_key(dtype, int(scan(x).keys[0]), 1)
        look(x)
        block = quantise(x, scale)
        for shape in (SHAPES[0], SHAPES[-1]):
            search = UnionSearch(block.index, x.size, shape)
            while not search.done:
                level = np.empty(search.lanes, np.uint32)
                search.write(level)
                search.read(level)
        union = search.coordinates
        sketch = plan_sketch(union, x.size, workspace=workspace)
        for plan in (sketch, plan_packed(union, x.size), plan_dense(x.size)):
            lanes = np.empty(plan.lanes, np.uint32)
            encode(block, plan, lanes)
            decode(lanes, plan, scale, x)
        encode_values(x, scale, np.empty(x.size, np.uint32))


def warm_up_exact(dtype: Any = np.float32) -> None:
    """The same for the exact codec and one float dtype, which few jobs use: some seconds."""
    x = np.zeros(64, dtype)
    x[3] = 1
    for low in (1.0, 1e-7):  # one digit, and several with an index of their own
        x[5] = low
        scale = ExactScale.from_keys(x.dtype, scan_exact(x, 3).keys[:, 0], 3)
        block = list_values(x)
        digits = digitise(block, block.coordinates, scale)
        plans = [plan_dense(digits.size)]
        if digits.coordinates.size < digits.size:
            plans.append(plan_packed(digits.coordinates, digits.size))
        for plan in plans:
            lanes = np.empty(plan.lanes, np.uint32)
            encode(digits, plan, lanes)
            compose(lanes, plan, block.coordinates, scale, np.empty_like(x), "mean")
