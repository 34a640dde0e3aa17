"""Whole calls of several ranks on the compiled program, in virtual time: whatever the network does, whatever
the calls before were like, every rank gets the exact result or the same refusal, and the next call works."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from switchreduce.errors import NonFiniteError, SumOverflowError, SwitchReduceError
from switchreduce.p4.builds import load_build
from switchreduce.sim.network import VirtualNetwork
from switchreduce.worker import collective
from switchreduce.worker.agreement import Disagreement, Refused
from switchreduce.worker.caller import Caller
from switchreduce.worker.calls import CODECS, arrays_of, describe_call
from switchreduce.worker.codec import exact_allreduce, plan_blind, rounded_allreduce
from switchreduce.worker.collective import Outcome, arena_rows
from tests.worker.transport.simulated import SWITCH_ADDRESS, SimulatedJob, network_fates, perfect

BUILD = load_build("wide256")
LIMIT = 3000.0  # s of virtual time


@dataclass
class Rank:
    """A rank's steps, as the communicator would drive them."""

    steps: Generator[Any, None, Any]
    waits_for: Any = None
    result: Any = None  # the steps' outcome, or what they raised
    over: bool = False

    def advance(self) -> None:
        while not self.over and (self.waits_for is None or self.waits_for.done):
            try:
                self.waits_for = next(self.steps)
            except StopIteration as stop:
                self.over, self.result = True, stop.value
            except (SwitchReduceError, Disagreement, Refused) as error:
                self.over, self.result = True, error


class Job:
    """Ranks that make calls together, in virtual time."""

    def __init__(self, switch, network, ranks, slots):
        self.network = network
        self.job = SimulatedJob(switch, BUILD, network, ranks, slots, rows=arena_rows(BUILD.lanes))
        self.callers = [Caller(engine) for engine in self.job.engines]
        self.number = 0

    def call(self, arrays, op="sum", codec="auto", specs=None, nonfinite="raise"):
        """Every rank's outcome or error of a call; `specs` describes it otherwise for a rank."""
        ranks = []
        for number, (caller, array) in enumerate(zip(self.callers, arrays, strict=True)):
            how = {"op": op, "codec": codec, "nonfinite": nonfinite} | (specs or {}).get(number, {})
            spec = describe_call(self.number, arrays_of(array), **how)
            try:
                steps = caller.steps(caller.prepare(spec, array))
            except SwitchReduceError:
                steps = caller.refuse(spec)
            ranks.append(Rank(steps))
        self.number += 1

        def progress():
            return any(not rank.over and rank.waits_for.done for rank in ranks)

        while True:
            for rank in ranks:
                rank.advance()
            if all(rank.over for rank in ranks):
                return [rank.result for rank in ranks]
            self.network.run(progress, self.network.now + LIMIT)


def sparse(rng, size, density, magnitude, dtype):
    x = np.where(rng.random(size) < density, rng.uniform(-1, 1, size) * magnitude, 0)
    if size and density:
        x[rng.integers(size)] = magnitude  # so that calls of one magnitude have the same scale
    return x.astype(dtype)


def reference(arrays, op, codec):
    return rounded_allreduce(arrays, op) if codec == "exact" else exact_allreduce(arrays, op).result


CALLS = st.fixed_dictionaries(
    {
        "density": st.sampled_from([0.0, 0.01, 0.05, 0.05, 0.05, 0.6, 1.0]),
        "magnitude": st.sampled_from([1.0, 1.0, 1.0, 4.0, 1000.0]),
        "spoiler": st.sampled_from(["none", "none", "none", "nan", "shape", "op", "codec"]),
    }
)


@settings(max_examples=60, deadline=None)
@given(
    fate=network_fates(),
    ranks=st.integers(1, 4),
    slots=st.sampled_from([1, 2, 9, 64, 100]),
    size=st.sampled_from([1, 40, 3000, 9000]),
    codec=st.sampled_from(CODECS),
    op=st.sampled_from(["sum", "mean"]),
    calls=st.lists(CALLS, min_size=2, max_size=6),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_sequence_of_calls(wide_switch, fate, ranks, slots, size, codec, op, calls, seed):
    rng = np.random.default_rng(seed)
    job = Job(wide_switch, VirtualNetwork(wide_switch, BUILD, SWITCH_ADDRESS, fate), ranks, slots)
    try:
        for call in calls:
            arrays = [sparse(rng, size, call["density"], call["magnitude"], np.float32) for _ in range(ranks)]
            expected = reference(arrays, op, codec)
            specs = {}
            odd = ranks - 1
            if call["spoiler"] == "nan":
                arrays[odd][-1] = np.nan
            elif call["spoiler"] == "shape":
                arrays[odd] = np.zeros(size + 5000, np.float32)
            elif call["spoiler"] != "none":
                specs = {odd: {"op": "mean" if op == "sum" else "sum"}}
                if call["spoiler"] == "codec":
                    specs = {odd: {"codec": "dense" if codec != "dense" else "packed"}}
            before = [array.copy() for array in arrays]
            outcomes = job.call(arrays, op, codec, specs)
            fails = call["spoiler"] == "nan" or (ranks > 1 and call["spoiler"] != "none")
            if not fails and call["spoiler"] != "none":
                continue  # a single rank agrees with itself on the odd call
            for array, old, outcome in zip(arrays, before, outcomes, strict=True):
                if fails:
                    kind = Refused if call["spoiler"] == "nan" else Disagreement
                    assert type(outcome) is kind
                    assert array.tobytes() == old.tobytes()
                else:
                    assert isinstance(outcome, Outcome)
                    assert array.tobytes() == expected.tobytes()
    finally:
        job.job.close()


@pytest.fixture
def job(wide_switch):
    job = Job(wide_switch, VirtualNetwork(wide_switch, BUILD, SWITCH_ADDRESS, perfect), 3, 64)
    yield job
    job.job.close()


def packets(job):
    return job.job.engines[0].stats.sent


def seconds_of(job, *arguments, **how):
    started, sent = job.network.now, packets(job)
    for outcome in job.call(*arguments, **how):
        assert isinstance(outcome, Outcome)
    return job.network.now - started, packets(job) - sent


@pytest.mark.parametrize(
    ("codec", "first", "next_one"), [("sketch", 3, 1), ("dense", 2, 1), ("packed", 3, 2), ("exact", 4, 4)]
)
def test_round_trips_of_a_small_call(job, codec, first, next_one):
    """20 us each on this network: agreement, index (exact: two), values; later calls need fewer."""
    rng = np.random.default_rng(1)
    support = rng.random(2000) < 0.05

    def arrays():
        xs = [np.where(support, rng.uniform(-1, 1, 2000), 0).astype(np.float32) for _ in range(3)]
        for x in xs:
            x[np.flatnonzero(support)[0]] = 1.0
        return xs

    assert seconds_of(job, arrays(), codec=codec)[0] == pytest.approx(first * 20e-6)
    for _ in range(3):
        assert seconds_of(job, arrays(), codec=codec)[0] == pytest.approx(next_one * 20e-6)


def test_what_does_not_peel_goes_again_alone(job):
    """A union three times as large as the last one: a second round for the rest, exact all the same."""
    rng = np.random.default_rng(2)
    for call, density in enumerate((0.02, 0.02, 0.06, 0.06, 0.02)):
        arrays = [sparse(rng, 9000, density, 1.0, np.float32) for _ in range(3)]
        expected = reference(arrays, "sum", "sketch")
        seconds, _ = seconds_of(job, arrays, codec="sketch")
        assert all(array.tobytes() == expected.tobytes() for array in arrays)
        assert call == 0 or seconds < 4 * 20e-6


def test_a_foreseen_sketch_is_no_larger_than_it_says(job):
    rng = np.random.default_rng(3)
    arrays = [sparse(rng, 9000, 0.05, 1.0, np.float32) for _ in range(3)]
    union = int(np.count_nonzero(np.any(arrays, axis=0)))
    job.call([array.copy() for array in arrays], codec="sketch")
    _, sent = seconds_of(job, arrays, codec="sketch")
    assert sent == 1 + 2 + -(-plan_blind(union, 9000).lanes // 256)


def test_an_overflow_leaves_the_arrays_and_the_ranks_in_step(job):
    top = np.iinfo(np.int32).max
    for _ in range(3):
        arrays = [np.array([5, top if rank < 2 else 0], np.int32) for rank in range(3)]
        assert all(isinstance(outcome, SumOverflowError) for outcome in job.call(arrays))
        assert arrays[0].tolist() == [5, top]
        fine = [np.array([5, rank], np.int32) for rank in range(3)]
        job.call(fine)
        assert fine[0].tolist() == [15, 3]


def test_many_blocks_with_little_room(wide_switch):
    """More values under way than the arena holds: blocks wait for room, on all ranks at the same step."""
    network = VirtualNetwork(wide_switch, BUILD, SWITCH_ADDRESS, perfect)
    job = Job(wide_switch, network, 2, 200)
    try:
        rng = np.random.default_rng(4)
        top = 2**31 - 1
        arrays = [rng.integers(-(2**29), 2**29, 9 * 2**18 + 5).astype(np.int32) for _ in range(2)]
        arrays[0][2**18 : 2**19] = 0
        arrays[1][2**18 : 2**19] = 0
        arrays[0][::77] = top
        arrays[1][::77] = -top
        expected = np.sum(arrays, axis=0, dtype=np.int64).astype(np.int32)
        for outcome in job.call(arrays, codec="packed"):
            assert isinstance(outcome, Outcome)
        assert np.array_equal(arrays[0], expected)
        assert np.array_equal(arrays[1], expected)
    finally:
        job.job.close()


@pytest.mark.parametrize("codec", ["packed", "sketch"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_pieces_of_several_blocks(wide_switch, monkeypatch, dtype, codec):
    """Blocks of one piece with scales far apart, an empty one between, an end inside a lane, two arrays."""
    monkeypatch.setattr(collective, "PIECES", 2)
    network = VirtualNetwork(wide_switch, BUILD, SWITCH_ADDRESS, perfect)
    job = Job(wide_switch, network, 2, 200)
    try:
        rng = np.random.default_rng(8)
        inputs = []
        for _ in range(2):
            size = 8 * 2**18 + 5
            magnitude = np.repeat([1.0, 1e-3, 0.0, 1e4, 1.0, 0.0, 0.0, 50.0, 1.0], 2**18)[:size]
            if dtype == "int32":
                magnitude = magnitude * 1e5
            inputs.append(np.where(rng.random(size) < 0.01, rng.uniform(-1, 1, size), 0) * magnitude)
        if dtype == "int32":
            inputs[0][4 * 2**18 - 9] = 2**31 - 1  # this block and its piece need two limbs
            inputs[1][4 * 2**18 - 9] = 0
        flats = [flat.astype(dtype) for flat in inputs]
        wide = [flat.astype(np.float64) if dtype == "float16" else flat for flat in flats]
        expected = exact_allreduce(wide).result.astype(dtype)
        cut = 3 * 2**18 + 77
        arrays = [[flat[:cut].copy(), flat[cut:].copy()] for flat in flats]
        for outcome in job.call(arrays, codec=codec):
            assert isinstance(outcome, Outcome)
            assert max(len(piece.scales) for piece in outcome.pieces) == 4
        for pair in arrays:
            assert np.concatenate(pair).tobytes() == expected.tobytes()
    finally:
        job.job.close()


def test_an_exact_float64_call_with_every_exponent(job):
    """Dozens of limbs: the block is cut so that they fit the arena."""
    rng = np.random.default_rng(5)
    arrays = [np.ldexp(rng.uniform(-1, 1, 30_000), rng.integers(-1000, 1000, 30_000)) for _ in range(3)]
    import math

    expected = [math.fsum(column) for column in zip(*arrays, strict=True)]
    for outcome in job.call(arrays, codec="exact"):
        assert isinstance(outcome, Outcome), outcome
    assert arrays[0].tolist() == expected
    assert arrays[2].tolist() == expected


def test_nonfinite_is_named_by_array(job):
    caller = job.callers[0]
    arrays = [np.zeros(3, np.float32), np.array([[0, 1], [np.inf, 0]], np.float32)]
    with pytest.raises(NonFiniteError, match=r"inf at index \(1, 0\) of array 1"):
        caller.prepare(describe_call(0, arrays, "sum", "auto"), arrays)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.data(), codec=st.sampled_from(CODECS), dtype=st.sampled_from(["float32", "float64", "float16"])
)
def test_nonfinite_values_propagate_as_in_a_float_sum(job, data, codec, dtype):
    """On any ranks, in any blocks, with finite values on the others; the finite sums are as without them."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    size = data.draw(st.sampled_from([3, 3000, 2**18 + 40]))
    arrays = [sparse(rng, size, 0.05, 1.0, dtype) for _ in range(3)]
    spots = data.draw(
        st.lists(
            st.tuples(
                st.integers(0, 2),
                st.sampled_from([0, 1, 2, size - 1]),
                st.sampled_from([np.inf, -np.inf, np.nan]),
            ),
            max_size=5,
        )
    )
    for rank, place, value in spots:
        arrays[rank][place] = value
    cleaned = [np.where(np.isfinite(array), array, 0).astype(dtype) for array in arrays]
    with np.errstate(invalid="ignore"):
        plain = np.sum(arrays, axis=0, dtype=np.float64)
    for outcome in job.call(cleaned, codec=codec):
        assert isinstance(outcome, Outcome)
    for outcome in job.call(arrays, codec=codec, nonfinite="propagate"):
        assert isinstance(outcome, Outcome)
    for array in arrays:
        assert np.array_equal(np.isnan(array), np.isnan(plain))
        assert np.array_equal(array[np.isinf(plain)], plain[np.isinf(plain)])
        finite = np.isfinite(plain)
        assert array[finite].tobytes() == cleaned[0][finite].tobytes()


def test_ranks_that_treat_nonfinite_values_differently_are_told(job):
    outcomes = job.call([np.ones(5, np.float32) for _ in range(3)], specs={1: {"nonfinite": "propagate"}})
    assert [type(outcome) for outcome in outcomes] == [Disagreement] * 3
