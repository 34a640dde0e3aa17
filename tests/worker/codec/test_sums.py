"""Decoding lanes that are not what they should be, and the arguments of encode and decode."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchreduce.errors import SwitchError, UsageError
from switchreduce.worker import codec

SIZE = 3000
GUARD = 64


def encoded(dtype, density, seed=1, world_size=4, packed=False):
    """A scale, plan and lanes of one rank's block."""
    rng = np.random.default_rng(seed)
    x = np.where(rng.random(SIZE) < density, rng.integers(-(2**31), 2**31, SIZE), 0).astype(dtype)
    scale = codec.BlockScale.from_key(dtype, int(codec.scan(x).keys[0]), world_size)
    block = codec.quantise(x, scale)
    plan = (codec.plan_packed if packed else codec.plan_sketch)(block.coordinates, SIZE, scale.limbs)
    lanes = np.empty(plan.lanes, np.uint32)
    codec.encode(block, plan, lanes)
    return x, scale, plan, lanes


@settings(max_examples=200, deadline=None)
@given(
    data=st.data(),
    dtype=st.sampled_from([np.float32, np.float64, np.int32]),
    density=st.sampled_from([0.001, 0.05, 0.3, 1.0]),
    packed=st.booleans(),
)
def test_altered_lanes_stay_inside_the_arrays(data, dtype, density, packed):
    """Whatever the lanes hold, decode touches its own arrays only, and a sketch notices one wrong lane."""
    x, scale, plan, good = encoded(dtype, density, packed=packed)
    lanes = np.full(plan.lanes + 2 * GUARD, 0xABABABAB, np.uint32)
    out = np.full(SIZE + 2 * GUARD, 123, dtype)
    inside = lanes[GUARD:-GUARD]
    inside[:] = good
    altered = data.draw(st.lists(st.integers(0, plan.lanes - 1), max_size=5))
    for lane in altered:
        inside[lane] ^= np.uint32(data.draw(st.integers(1, 2**32 - 1)))
    changed = np.count_nonzero(inside != good)
    try:
        overflow = codec.decode(inside, plan, scale, out[GUARD:-GUARD])
    except SwitchError:
        assert plan.form is codec.Form.SKETCH
        assert changed
    else:
        assert changed != 1 or plan.form is not codec.Form.SKETCH
        if not changed and scale.limbs == 2:
            assert overflow == -1
            assert np.array_equal(out[GUARD:-GUARD], x)
    assert (lanes[:GUARD] == 0xABABABAB).all()
    assert (lanes[-GUARD:] == 0xABABABAB).all()
    assert (out[:GUARD] == 123).all()
    assert (out[-GUARD:] == 123).all()


def test_packed_union_that_lacks_a_coordinate_is_noticed():
    x, scale, plan, lanes = encoded(np.float32, 0.05, packed=True)
    block = codec.quantise(x, scale)
    for missing in (0, 70, plan.lanes - 1):
        less = codec.plan_packed(np.delete(plan.coordinates, missing), SIZE)
        with pytest.raises(SwitchError, match="lacks"):
            codec.encode(block, less, lanes[1:].copy())


def test_sums_of_another_plan_are_noticed():
    _, scale, plan, lanes = encoded(np.float32, 0.05)
    with pytest.raises(SwitchError, match="contradict"):
        codec.decode(lanes, replace(plan, seed=plan.seed + 1), scale, np.empty(SIZE, np.float32))


def test_mean_of_integers_is_refused():
    _, scale, plan, lanes = encoded(np.int32, 0.05)
    with pytest.raises(UsageError, match="mean"):
        codec.decode(lanes, plan, scale, np.empty(SIZE, np.int32), "mean")


def test_arguments_of_other_shapes_are_refused():
    x, scale, plan, lanes = encoded(np.float32, 0.05)
    block = codec.quantise(x, scale)
    out = np.empty(SIZE, np.float32)
    for call in (
        lambda: codec.encode(block, plan, lanes[:-1]),
        lambda: codec.encode(block, plan, lanes.view(np.int32)),
        lambda: codec.encode(codec.quantise(x[:-1], scale), plan, lanes),
        lambda: codec.decode(lanes[1:], plan, scale, out),
        lambda: codec.decode(lanes, plan, scale, out[1:]),
        lambda: codec.decode(lanes, plan, scale, np.empty(SIZE, np.float64)),
        lambda: codec.decode(lanes, plan, scale, out, "max"),
        lambda: codec.quantise(x.astype(np.float64), scale),
        lambda: codec.quantise(x, scale, np.empty(5, np.uint32)),
        lambda: codec.encode_values(x, scale, np.empty(5, np.uint32)),
    ):
        with pytest.raises(UsageError):
            call()


def test_read_only_input_is_enough():
    x = np.ones(100, np.float32)
    x.flags.writeable = False
    scale = codec.BlockScale.from_key(x.dtype, int(codec.scan(x).keys[0]), 1)
    assert codec.quantise(x, scale).values.size == 100


AFTER_WARM_UP = """
import numpy as np
from switchreduce.worker import codec
from switchreduce.worker.codec import index_kernels, kernels

def variants():
    everything = {**vars(kernels), **vars(index_kernels)}
    loops = {name: loop for name, loop in everything.items() if hasattr(loop, "signatures")}
    return {name: len(loop.signatures) for name, loop in loops.items()}

codec.warm_up()
before = variants()
for dtype in codec.DTYPES:
    for world_size in (1, 64):
        for writeable in (True, False):
            x = np.zeros(5000, dtype)
            x[::3] = 2**31 - 1
            x.flags.writeable = writeable
            scale = codec.BlockScale.from_key(dtype, int(codec.scan(x).keys[0]), world_size)
            block = codec.quantise(x, scale)
            codec.look(x)
            for shape in codec.SHAPES:
                search = codec.UnionSearch(block.index, x.size, shape)
                while not search.done:
                    level = np.empty(search.lanes, np.uint32)
                    search.write(level)
                    search.read(level)
            sketch = codec.plan_sketch(search.coordinates, x.size, scale.limbs)
            packed = codec.plan_packed(search.coordinates, x.size, scale.limbs)
            assert sketch.form is codec.Form.SKETCH
            assert packed.form is codec.Form.PACKED
            for plan in (sketch, packed, codec.plan_dense(x.size, scale.limbs)):
                lanes = np.empty(plan.lanes, np.uint32)
                codec.encode(block, plan, lanes)
                codec.decode(lanes, plan, scale, np.empty_like(x))
            codec.encode_values(x, scale, lanes)
assert sum(before.values()) > 10
assert variants() == before, (before, variants())
"""


def test_nothing_compiles_after_warm_up():
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", AFTER_WARM_UP], cwd=root, check=True)
