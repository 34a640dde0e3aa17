"""From coordinates to integers: the rank's index of a block and its non-zero values."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from switchreduce.worker.codec.arrays import (
    Lanes,
    Values,
    Workspace,
    check_lanes,
    check_values,
    index_lanes,
    read_only,
)
from switchreduce.worker.codec.kernels import BATCH, quantise_block
from switchreduce.worker.codec.scale import BlockScale, bits_of


@dataclass(frozen=True)
class QuantisedBlock:
    """One rank's block in integers, without its zeros.

    ``index``: uint32[ceil(size / 32)], coordinate i at lane i // 32, bit i % 32 from the lowest.
    ``coordinates``: uint32, where the index is set, ascending. ``values``: int32, the integers there.
    """

    size: int
    index: Lanes
    coordinates: NDArray[np.uint32]
    values: NDArray[np.int32]


def quantise(
    x: Values, scale: BlockScale, index: Lanes | None = None, workspace: Workspace | None = None
) -> QuantisedBlock:
    """Quantise one block ``x`` of ``scale.dtype``, whose key ``scale`` covers; one pass over it.

    The index is written to ``index`` if given (uint32[ceil(size / 32)], overwritten); the rest is the
    caller's to keep, 8 bytes per non-zero. Raises UsageError for arrays of another shape or dtype.
    """
    check_values(x)
    check_lanes("block", x, scale.dtype, x.size)
    if index is None:
        index = np.empty(index_lanes(x.size), np.uint32)
    check_lanes("index", index, np.uint32, index_lanes(x.size))
    if scale.is_empty:
        index[:] = 0
        return QuantisedBlock(x.size, index, np.empty(0, np.uint32), np.empty(0, np.int32))
    workspace = workspace or Workspace()
    coordinates = workspace.take("coordinates", np.uint32, x.size + BATCH)
    values = workspace.take("values", np.int32, x.size + BATCH)
    bits_type, mask = bits_of(x.dtype)
    bits = x.view(bits_type)
    count = quantise_block(
        read_only(x), read_only(bits), mask, scale.threshold, *scale.factors, index, coordinates, values
    )
    return QuantisedBlock(x.size, index, coordinates[:count].copy(), values[:count].copy())
