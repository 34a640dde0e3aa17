"""From coordinates to integers: the rank's index of a block and its non-zero values."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from switchreduce.worker.codec.arrays import Lanes, Values, check_lanes, check_values, index_lanes, read_only
from switchreduce.worker.codec.kernels import quantise_block
from switchreduce.worker.codec.scale import BlockScale, bits_of


@dataclass(frozen=True)
class QuantisedBlock:
    """One rank's block in integers, without its zeros.

    ``index``: uint32[ceil(size / 32)], coordinate i at lane i // 32, bit i % 32 from the lowest.
    ``values``: int32, the non-zero integers in coordinate order.
    """

    size: int
    index: Lanes
    values: NDArray[np.int32]


def quantise(x: Values, scale: BlockScale, index: Lanes | None = None) -> QuantisedBlock:
    """Quantise one block ``x`` of ``scale.dtype``, whose key ``scale`` covers; one pass over it.

    The index is written to ``index`` if given (uint32[ceil(size / 32)], overwritten). The values take no
    more memory than the non-zeros touch. Raises UsageError for arrays of another shape or dtype.
    """
    check_values(x)
    if index is None:
        index = np.empty(index_lanes(x.size), np.uint32)
    check_lanes("index", index, np.uint32, index_lanes(x.size))
    if scale.is_empty:
        index[:] = 0
        return QuantisedBlock(x.size, index, np.empty(0, np.int32))
    check_lanes("block", x, scale.dtype, x.size)
    bits_type, mask = bits_of(x.dtype)
    values = np.empty(x.size, np.int32)
    count = quantise_block(
        read_only(x), read_only(x.view(bits_type)), mask, scale.threshold, *scale.factors, index, values
    )
    return QuantisedBlock(x.size, index, values[:count])
