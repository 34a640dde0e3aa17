"""An exact allreduce through a switch in three NumPy lines, and what it must return, in Python integers."""

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from switchreduce.worker import codec
from switchreduce.worker.codec.exact_format import format_of

Array = NDArray[Any]


def find_union(indexes: list[Array], size: int, shape: codec.Shape = codec.FLAT) -> Array:
    searches = [codec.UnionSearch(index, size, shape) for index in indexes]
    while not searches[0].done:
        sent = [np.full(search.lanes, 99, np.uint32) for search in searches]
        for search, lanes in zip(searches, sent, strict=True):
            search.write(lanes)
        combined = np.bitwise_or.reduce(sent)
        for search in searches:
            search.read(combined)
    return searches[0].coordinates


def plan_block(
    parts: list[Array], scale: codec.ExactScale, workspace: codec.Workspace
) -> tuple[list[codec.QuantisedBlock], codec.Plan, Array]:
    """The ranks' digits of a block, how they travel, and the union of their supports."""
    size = parts[0].size
    blocks = [codec.list_values(x, workspace=workspace) for x in parts]
    union = find_union([block.index for block in blocks], size)
    digits = [codec.digitise(block, union, scale, workspace) for block in blocks]
    count = scale.limbs * union.size
    if scale.has_digit_index:
        numbers = find_union([block.index for block in digits], count, scale.digit_shape)
        plan = codec.plan_packed(numbers, count)
    else:
        plan = codec.plan_dense(count)
    return digits, plan, union


def exact_allreduce(ranks: list[Array], op: codec.Op = "sum", block: int = 2048, dtype: Any = None) -> Array:
    """What every rank holds after an exact allreduce; ``dtype`` of the result, if not the ranks'."""
    world_size = len(ranks)
    keys = np.maximum.reduce([codec.scan_exact(x, world_size, block).keys for x in ranks])
    out = np.frombuffer(
        b"\x4d" * (ranks[0].size * np.dtype(dtype or ranks[0].dtype).itemsize), np.uint8
    ).copy()
    out = out.view(dtype or ranks[0].dtype)
    workspace = codec.Workspace()
    for number in range(keys.shape[1]):
        part = slice(number * block, (number + 1) * block)
        scale = codec.ExactScale.from_keys(ranks[0].dtype, keys[:, number], world_size)
        digits, plan, union = plan_block([x[part] for x in ranks], scale, workspace)
        sent = [np.full(plan.lanes, 99, np.uint32) for _ in ranks]
        for one, lanes in zip(digits, sent, strict=True):
            codec.encode(one, plan, lanes)
        sums = np.add.reduce(sent, dtype=np.uint32)
        codec.compose(sums, plan, union, scale, out[part], op, workspace)
    return out


def integers_of(x: Array) -> list[int]:
    """The values in units of their format's smallest subnormal."""
    form = format_of(x.dtype)
    numbers = []
    for bits in x.view(form.bits_type).tolist():
        field = bits >> form.precision - 1 & (1 << form.exponent_bits) - 1
        significand = bits & (1 << form.precision - 1) - 1
        magnitude = significand + (1 << form.precision - 1) << field - 1 if field else significand
        negative = bits >> form.precision - 1 + form.exponent_bits
        numbers.append(-magnitude if negative else magnitude)
    return numbers


def rounded_bits(value: Fraction, dtype: Any) -> int:
    """The bits of an exact value rounded once to ``dtype``, by IEEE 754's definition; exact zero is +0."""
    form = format_of(dtype)
    magnitude = abs(value) / Fraction(2) ** form.minimum
    # the ulp at the value: 1 for subnormals, else so that the significand has ``precision`` bits
    ulp = 1 << max(int(magnitude).bit_length() - form.precision, 0)
    multiple = round(magnitude / ulp)  # Python rounds a Fraction half to even
    if multiple == 1 << form.precision:
        multiple, ulp = multiple >> 1, ulp << 1
    field = ulp.bit_length() if multiple >> form.precision - 1 else 0
    bits = field << form.precision - 1 | multiple & (1 << form.precision - 1) - 1
    sign = int(value < 0) << form.precision - 1 + form.exponent_bits
    return min(bits, form.infinity) | sign


def expected_bits(ranks: list[Array], op: str, dtype: Any = None) -> list[int]:
    """The bits of the correctly rounded sums or means."""
    unit = Fraction(2) ** format_of(ranks[0].dtype).minimum
    divisor = len(ranks) if op == "mean" else 1
    columns = zip(*map(integers_of, ranks), strict=True)
    return [rounded_bits(sum(column) * unit / divisor, dtype or ranks[0].dtype) for column in columns]


def bits_list(x: Array) -> list[int]:
    return x.view(format_of(x.dtype).bits_type).tolist()  # type: ignore[no-any-return]
