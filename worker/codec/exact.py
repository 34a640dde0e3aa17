"""The exact codec: the correctly rounded sum of the ranks' floats, whatever their magnitudes and order.

Nothing is rounded before the sum is complete. A block takes these steps ("switch" is where the lanes of all
ranks are combined):

1. ``scan_exact``: three keys a block                  -> switch MAX -> ``ExactScale.from_keys``
2. ``list_values``, ``UnionSearch``: the rank's index  -> switch OR  -> union
3. ``digitise``: the rank's digits at the union. They are integers with coordinates of their own, digit l of
   the union's k-th coordinate at l * |U| + k, so from here on they travel like any quantised block does:
   if ``scale.has_digit_index``, ``UnionSearch`` over the digits' index -> switch OR -> ``plan_packed``,
   otherwise ``plan_dense`` of all digits
4. ``encode``: the rank's lanes                        -> switch SUM -> ``compose`` writes the rounded result
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from switchreduce.errors import SwitchError, UsageError
from switchreduce.worker.codec.arrays import Lanes, Workspace, check_lanes, index_lanes, read_only
from switchreduce.worker.codec.exact_format import bits_view, format_of
from switchreduce.worker.codec.exact_kernels import (
    add_digits,
    count_digits,
    find,
    list_digits,
    list_nonzeros,
    reciprocal,
    write_sums,
)
from switchreduce.worker.codec.exact_scale import ExactScale
from switchreduce.worker.codec.kernels import BATCH
from switchreduce.worker.codec.plan import Form, Plan
from switchreduce.worker.codec.quantised import QuantisedBlock
from switchreduce.worker.codec.results import Op


@dataclass(frozen=True)
class ListedBlock:
    """One rank's block without its zeros.

    ``index``: uint32[ceil(size / 32)], coordinate i at lane i // 32, bit i % 32 from the lowest.
    ``coordinates``: uint32, where the index is set, ascending. ``bits``: the values there, as unsigned
    integers of their width.
    """

    dtype: np.dtype[Any]
    size: int
    index: Lanes
    coordinates: NDArray[np.uint32]
    bits: NDArray[Any]


def list_values(
    x: NDArray[Any], index: Lanes | None = None, workspace: Workspace | None = None
) -> ListedBlock:
    """List the coordinates of one block ``x`` that are not zero; one pass over it. Needs no scale.

    The index is written to ``index`` if given (uint32[ceil(size / 32)], overwritten); the rest is the
    caller's to keep, 4 bytes and the value's per non-zero. Raises UsageError for arrays that ``scan_exact``
    does not take.
    """
    bits = bits_view(x)
    if index is None:
        index = np.empty(index_lanes(x.size), np.uint32)
    check_lanes("index", index, np.uint32, index_lanes(x.size))
    workspace = workspace or Workspace()
    coordinates = workspace.take("coordinates", np.uint32, x.size + BATCH)
    values = workspace.take(f"values {bits.dtype}", bits.dtype, x.size + BATCH)
    mask = bits.dtype.type(np.iinfo(bits.dtype).max >> 1)
    count = list_nonzeros(read_only(bits), mask, index, coordinates, values)
    return ListedBlock(x.dtype, x.size, index, coordinates[:count].copy(), values[:count].copy())


def digitise(
    block: ListedBlock, union: NDArray[np.uint32], scale: ExactScale, workspace: Workspace | None = None
) -> QuantisedBlock:
    """The rank's digits that are not 0, as a block of ``scale.limbs * union.size`` integers.

    ``union``: the coordinates, ascending. The result takes 8 bytes a digit; a float32 has two at most in jobs
    of up to 256 ranks. Raises SwitchError if the union lacks one of the block's coordinates, or the scale one
    of its bits.
    """
    check_lanes("union", union, np.uint32, union.size)
    form = format_of(block.dtype)
    if block.dtype != scale.dtype:
        raise UsageError(f"the block is of {block.dtype}, the scale for {scale.dtype}")
    if union.size and int(union.max()) >= block.size:
        raise UsageError(f"the union has coordinates beyond the {block.size} of the block")
    workspace = workspace or Workspace()
    size = scale.limbs * union.size
    counts = np.zeros(scale.limbs, np.int64)
    if block.coordinates.size:
        positions = workspace.take("positions", np.uint32, union.size + 1)
        if find(read_only(block.index), read_only(union), positions) != block.coordinates.size:
            raise SwitchError("a block's union lacks coordinates that this rank sent: packets were altered")
        values = read_only(block.bits)
        base = scale.exponent - form.minimum
        width = scale.digit_bits
        steps = (form.precision - 2) // width + 2  # digits that a significand reaches into at most
        layout = (form.precision, form.exponent_bits, base, width, reciprocal(width), steps)
        if scale.is_empty or not count_digits(values, *layout, counts):
            raise SwitchError("a block's keys deny bits that this rank has: packets were altered")
    index = np.zeros(index_lanes(size), np.uint32)
    count = int(counts.sum())
    coordinates, digits = np.empty(count + 1, np.uint32), np.empty(count + 1, np.int32)
    if block.coordinates.size:
        cursors = np.cumsum(counts) - counts
        list_digits(values, read_only(positions), union.size, *layout, cursors, index, coordinates, digits)
    return QuantisedBlock(size, index, coordinates[:count], digits[:count])


def compose(
    lanes: Lanes,
    plan: Plan,
    union: NDArray[np.uint32],
    scale: ExactScale,
    out: NDArray[Any],
    op: Op = "sum",
    workspace: Workspace | None = None,
) -> None:
    """Turn the switch's sums of digits into the block's result: the exact sum, or for a mean the exact
    quotient of it and ``scale.world_size``, rounded once to ``out``'s dtype, half to even.

    ``lanes``: uint32[plan.lanes]. ``out`` is overwritten, zeros included; its dtype may be another than the
    block's, narrower or wider. A result beyond the dtype becomes infinity, one that is exactly zero becomes
    +0.0, and one too small for a subnormal a zero of its sign (IEEE 754-2019, 4.3.1 and 6.3).

    Altered lanes give other numbers, within ``out``, and go unnoticed. Raises UsageError for arguments that
    do not fit each other.
    """
    check_lanes("lanes", lanes, np.uint32, plan.lanes)
    check_lanes("union", union, np.uint32, union.size)
    bits = bits_view(out)
    if op not in ("sum", "mean"):
        raise UsageError(f"op {op!r} is not 'sum' or 'mean'")
    if plan.size != scale.limbs * union.size or plan.limbs != 1 or plan.form is Form.SKETCH:
        raise UsageError(f"the plan is not for the {scale.limbs} digits of {union.size} coordinates")
    if union.size and int(union.max()) >= out.size:
        raise UsageError(f"the union has coordinates beyond the {out.size} of the block")
    if plan.lanes == 0:
        bits[:] = 0
        return
    workspace = workspace or Workspace()
    sums = workspace.take("sums", np.int64, union.size)
    firsts = workspace.take("firsts", np.uint8, union.size)
    lasts = workspace.take("lasts", np.uint8, union.size)
    lanes, numbers = read_only(lanes), read_only(plan.coordinates)
    ends = np.arange(1, scale.limbs + 1) * union.size
    if plan.form is Form.PACKED:
        ends = np.searchsorted(numbers, ends)
    add_digits(lanes, numbers, ends, scale.digit_bits, sums, firsts, lasts)
    divisor, exponent = (scale.world_size if op == "mean" else 1), scale.exponent
    if divisor & (divisor - 1) == 0:  # a power of two only moves the exponent
        divisor, exponent = 1, exponent - (divisor.bit_length() - 1)
    form = format_of(out.dtype)
    write_sums(
        read_only(sums),
        read_only(firsts),
        read_only(lasts),
        lanes,
        numbers,
        ends,
        scale.digit_bits,
        exponent,
        divisor,
        read_only(union),
        form.precision,
        form.exponent_bits,
        form.minimum,
        np.uint64(form.infinity),
        bits,
    )
