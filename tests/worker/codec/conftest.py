"""A switch in three NumPy lines, and gradients to send through it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from switchreduce.worker import codec

Array = NDArray[Any]


def run_allreduce(
    ranks: list[Array],
    op: codec.Op = "sum",
    block: int = 2048,
    form: str = "sketch",
    shape: codec.Shape = codec.FLAT,
) -> tuple[Array, int]:
    """What the ranks hold after an allreduce, and the flat index of the first overflow or -1.

    The switch is the three reductions over ranks: MAX of keys, OR of indexes, wrapping SUM of lanes.
    Each rank plans for itself; they must agree.
    """
    dtype, size = ranks[0].dtype, ranks[0].size
    keys = np.maximum.reduce([codec.scan(x, block).keys for x in ranks])
    result = np.full(size, 77, dtype)
    used, fresh = codec.Workspace(), codec.Workspace()
    for number, key in enumerate(keys):
        part = slice(number * block, min((number + 1) * block, size))
        length = part.stop - part.start
        scale = codec.BlockScale.from_key(dtype, int(key), len(ranks))
        if form == "dense":
            plan = codec.plan_dense(length, scale.limbs)
            sent = [np.full(plan.lanes, 99, np.uint32) for _ in ranks]
            for x, lanes in zip(ranks, sent, strict=True):
                codec.encode_values(x[part], scale, lanes)
        else:
            blocks = [codec.quantise(x[part], scale, workspace=used) for x in ranks]
            union = find_union([one.index for one in blocks], length, shape)
            if form == "sketch":
                plan = codec.plan_sketch(union, length, scale.limbs, used)
                other = codec.plan_sketch(union, length, scale.limbs, fresh)
                assert (plan.form, plan.seed, plan.layout) == (other.form, other.seed, other.layout)
                assert np.array_equal(plan.order, other.order)
            else:
                plan = codec.plan_packed(union, length, scale.limbs)
                assert plan.lanes == union.size * scale.limbs
            sent = [np.full(plan.lanes, 99, np.uint32) for _ in ranks]
            for one, lanes in zip(blocks, sent, strict=True):
                codec.encode(one, plan, lanes)
        assert plan.lanes <= length * scale.limbs
        sums = np.add.reduce(sent, dtype=np.uint32)
        overflow = codec.decode(sums, plan, scale, result[part], op)
        if overflow >= 0:
            return result, part.start + overflow
    return result, -1


def find_union(indexes: list[Array], size: int, shape: codec.Shape) -> Array:
    """The union of the ranks' indexes (bitmaps), found level by level on every rank."""
    searches = [codec.UnionSearch(index, size, shape) for index in indexes]
    while not searches[0].done:
        sent = [np.full(search.lanes, 99, np.uint32) for search in searches]
        for search, lanes in zip(searches, sent, strict=True):
            search.write(lanes)
        combined = np.bitwise_or.reduce(sent)
        for search in searches:
            search.read(combined)
    for search in searches:
        assert search.done
        assert np.array_equal(search.coordinates, searches[0].coordinates)
    return searches[0].coordinates


def make_ranks(
    rng: np.random.Generator,
    dtype: Any,
    world_size: int,
    size: int,
    density: float,
    support: str,
    magnitude: str,
) -> list[Array]:
    """Arrays with ``density`` non-zeros whose supports are uniform, clustered, equal or disjoint."""
    chosen = rng.random((world_size, size)) < density
    if support == "clustered":
        chosen[:] = False
        run = int(density * size)
        for row in chosen:
            start = rng.integers(0, size - run + 1)
            row[start : start + run] = True
    elif support == "equal":
        chosen[:] = chosen[0]
    elif support == "disjoint":
        chosen &= rng.integers(0, world_size, size) == np.arange(world_size)[:, None]
    if dtype == np.int32:
        limit = {"large": 2**31 - 1, "mixed": 2**31 // world_size - 1}.get(magnitude, 1000)
        values = rng.integers(-limit, limit, (world_size, size), endpoint=True)
        return list(np.where(chosen, values, 0).astype(np.int32))
    limits = np.finfo(dtype)
    values = rng.standard_normal((world_size, size))
    if magnitude == "mixed":
        exponent = rng.integers(limits.minexp - limits.nmant, limits.maxexp - 8, (world_size, size))
        values = np.ldexp(np.clip(values, -1, 1), exponent)
    elif magnitude == "tiny":
        values = np.ldexp(values, limits.minexp - limits.nmant + 3)  # subnormal
    elif magnitude == "large":
        values = np.ldexp(np.clip(values, -1, 1), limits.maxexp - 1)
    return list(np.where(chosen, values, 0).astype(dtype))


@pytest.fixture(scope="session")
def allreduce() -> Callable[..., tuple[Array, int]]:
    return run_allreduce


@pytest.fixture(scope="session")
def ranks_of() -> Callable[..., list[Array]]:
    return make_ranks


@pytest.fixture(scope="session")
def union_search() -> Callable[..., Array]:
    return find_union
