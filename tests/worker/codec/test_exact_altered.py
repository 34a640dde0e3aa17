"""What the exact codec makes of keys, unions and lanes that are not what they should be, and of arguments."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchreduce.errors import MismatchError, SwitchError, UsageError
from switchreduce.worker import codec
from tests.worker.codec.exact_switch import exact_allreduce, plan_block

SIZE = 3000
GUARD = 64
FLOATS = st.sampled_from([np.float16, np.float32, np.float64])


def wild_block(dtype, density, spread, seed=1):
    rng = np.random.default_rng(seed)
    limits = np.finfo(dtype)
    exponents = rng.integers(max(limits.minexp, -spread), min(limits.maxexp - 3, spread), SIZE)
    x = np.ldexp(rng.standard_normal(SIZE).clip(-3, 3), exponents)
    return np.where(rng.random(SIZE) < density, x, 0).astype(dtype)


def encoded(dtype, density, spread, world_size=4):
    """A scale, union, plan and lanes of one rank's block."""
    x = wild_block(dtype, density, spread)
    scale = codec.ExactScale.from_keys(dtype, codec.scan_exact(x, world_size).keys[:, 0], world_size)
    (digits,), plan, union = plan_block([x], scale, codec.Workspace())
    lanes = np.empty(plan.lanes, np.uint32)
    codec.encode(digits, plan, lanes)
    return x, scale, union, plan, lanes


@settings(max_examples=100, deadline=None)
@given(
    data=st.data(),
    dtype=FLOATS,
    density=st.sampled_from([0.01, 0.05, 1.0]),
    spread=st.sampled_from([3, 20, 1000]),
    world_size=st.sampled_from([1, 3, 4, 64, 2**15]),
    op=st.sampled_from(["sum", "mean"]),
)
def test_any_lanes_stay_inside_the_arrays(data, dtype, density, spread, world_size, op):
    """Whatever the switch returns, compose writes to the block alone, and zeros where the union has none."""
    _, scale, union, plan, good = encoded(dtype, density, spread, world_size)
    lanes = np.full(plan.lanes + 2 * GUARD, 0xABABABAB, np.uint32)
    out = np.full(SIZE + 2 * GUARD, 123, dtype)
    inside = lanes[GUARD:-GUARD]
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    inside[:] = data.draw(
        st.sampled_from(
            [
                rng.integers(0, 2**32, plan.lanes, np.uint32),
                np.full(plan.lanes, 0x80000000, np.uint32),
                np.full(plan.lanes, 0x7FFFFFFF, np.uint32),
                np.where(rng.random(plan.lanes) < 0.01, ~good, good),
            ]
        )
    )
    codec.compose(inside, plan, union, scale, out[GUARD:-GUARD], op)
    assert (lanes[:GUARD] == 0xABABABAB).all()
    assert (lanes[-GUARD:] == 0xABABABAB).all()
    assert (out[:GUARD] == 123).all()
    assert (out[-GUARD:] == 123).all()
    assert not np.isnan(out).any()
    assert np.count_nonzero(np.delete(out[GUARD:-GUARD], union)) == 0


@settings(max_examples=200, deadline=None)
@given(data=st.data(), dtype=FLOATS, world_size=st.sampled_from([1, 4, 64]), random=st.booleans())
def test_any_keys_are_refused_or_notice_what_they_deny(data, dtype, world_size, random):
    """Keys that nobody has: from_keys refuses them, or digitise finds bits outside of them, or the block
    still decodes to itself."""
    x = wild_block(dtype, 0.05, 20)
    honest = codec.scan_exact(x, world_size).keys[:, 0].tolist()
    if random:
        keys = [data.draw(st.integers(0, 2**32 - 1) | st.just(key)) for key in honest]
    else:
        keys = [max(0, key + data.draw(st.integers(-40, 40))) for key in honest]
    try:
        scale = codec.ExactScale.from_keys(dtype, keys, world_size)
        (digits,), plan, union = plan_block([x], scale, codec.Workspace())
    except (MismatchError, SwitchError):
        assert keys != honest
        return
    lanes, out = np.empty(plan.lanes, np.uint32), np.empty_like(x)
    codec.encode(digits, plan, lanes)
    codec.compose(lanes, plan, union, scale, out)
    assert out.tobytes() == x.tobytes()


def test_keys_of_zeros_for_a_block_that_has_none():
    _, _, union, _, _ = encoded(np.float32, 0.05, 20)
    empty = codec.ExactScale.from_keys(np.float32, [0, 0, 0], 4)
    with pytest.raises(SwitchError, match="altered"):
        codec.digitise(codec.list_values(wild_block(np.float32, 0.05, 20)), union, empty)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_unions_that_lack_or_add_coordinates(data):
    x, scale, union, _, _ = encoded(np.float32, 0.05, 20)
    chosen = data.draw(st.lists(st.integers(0, SIZE - 1), max_size=200))
    kept = union[
        np.random.default_rng(len(chosen)).random(union.size) < data.draw(st.sampled_from([0.9, 1.0]))
    ]
    other = np.union1d(kept, np.array(chosen, np.uint32)).astype(np.uint32)
    block = codec.list_values(x)
    if np.isin(union, other).all():
        assert codec.digitise(block, other, scale).size == scale.limbs * other.size
    else:
        with pytest.raises(SwitchError, match="lacks"):
            codec.digitise(block, other, scale)


def test_arguments_that_do_not_fit_are_refused():
    x, scale, union, plan, lanes = encoded(np.float32, 0.05, 20)
    block = codec.list_values(x)
    out = np.empty(SIZE, np.float32)
    beyond = np.append(union, np.uint32(SIZE))
    for call in (
        lambda: codec.scan_exact(x.astype(np.int32), 4),
        lambda: codec.scan_exact(x.astype(">f4"), 4),
        lambda: codec.scan_exact(x[::2], 4),
        lambda: codec.scan_exact(x, 0),
        lambda: codec.scan_exact(x, 2**15 + 1),
        lambda: codec.scan_exact(x, 4, 1000),
        lambda: codec.ExactScale.from_keys(np.int64, [0, 0, 0], 4),
        lambda: codec.list_values(x.reshape(2, -1)),
        lambda: codec.list_values(x, np.empty(5, np.uint32)),
        lambda: codec.digitise(codec.list_values(x.astype(np.float64)), union, scale),
        lambda: codec.digitise(block, union.astype(np.int64), scale),
        lambda: codec.digitise(block, beyond, scale),
        lambda: codec.compose(lanes[:-1], plan, union, scale, out),
        lambda: codec.compose(lanes, plan, union[:-1], scale, out),
        lambda: codec.compose(lanes, plan, union, replace(scale, limbs=scale.limbs + 1), out),
        lambda: codec.compose(lanes, plan, union, scale, out[: union[-1]]),
        lambda: codec.compose(lanes, plan, union, scale, np.empty(SIZE, np.int32)),
        lambda: codec.compose(lanes, plan, union, scale, out, "max"),
    ):
        with pytest.raises(UsageError):
            call()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [0, 31, 2047, 2048, 4999])
def test_first_nonfinite_is_found(dtype, value, where):
    x = np.ones(5000, dtype)
    x[[where, -1]] = value
    assert codec.scan_exact(x, 4, 2048).first_nonfinite == where


@settings(max_examples=100, deadline=None)
@given(
    dtype=FLOATS,
    size=st.sampled_from([0, 1, 2047, 2048, 2049, SIZE]),
    density=st.sampled_from([0.0, 0.001, 1.0]),
    spread=st.sampled_from([3, 1000]),
)
def test_keys_are_the_blocks_window(dtype, size, density, spread):
    x = wild_block(dtype, density, spread)[:size]
    found = codec.scan_exact(x, 4, 2048)
    assert found.first_nonfinite == -1
    assert found.keys.shape == (codec.EXACT_KEYS, codec.block_count(size, 2048))
    for number, keys in enumerate(found.keys.T.tolist()):
        part = x[number * 2048 : (number + 1) * 2048].astype(np.float64)
        part = part[part != 0]
        if part.size == 0:
            assert keys == [0, 0, 0]
            continue
        top, bottom = keys[0] - 1074, 1024 - keys[1]
        assert top == np.frexp(np.abs(part).max())[1]
        fractions = [Fraction(value) / Fraction(2) ** bottom for value in part.tolist()]
        assert all(fraction.denominator == 1 for fraction in fractions)
        assert any(fraction.numerator % 2 for fraction in fractions)
        scale = codec.ExactScale.from_keys(dtype, keys, 4)
        assert scale.exponent <= bottom
        assert scale.exponent + scale.limbs * scale.digit_bits >= top
        assert scale.limbs <= 1 + -(-(top - bottom - 1) // scale.digit_bits)


def test_result_does_not_depend_on_the_workspaces_history():
    used = codec.Workspace()
    for seed, (density, spread) in enumerate([(1.0, 1000), (0.01, 3), (0.3, 20), (0.05, 1000)]):
        x = wild_block(np.float32, density, spread, seed)
        scale = codec.ExactScale.from_keys(x.dtype, codec.scan_exact(x, 3).keys[:, 0], 3)
        results = []
        for workspace in (used, codec.Workspace()):
            (digits,), plan, union = plan_block([x], scale, workspace)
            lanes, out = np.empty(plan.lanes, np.uint32), np.empty_like(x)
            codec.encode(digits, plan, lanes)
            codec.compose(lanes, plan, union, scale, out, "mean", workspace)
            results.append((digits.coordinates.tobytes(), lanes.tobytes(), out.tobytes()))
        assert results[0] == results[1]


def test_read_only_inputs_are_enough():
    x = wild_block(np.float32, 0.05, 20)
    x.flags.writeable = False
    assert np.array_equal(exact_allreduce([x]), x)
