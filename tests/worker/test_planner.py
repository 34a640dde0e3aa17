"""The planner's choices, from what it is told that calls cost."""

import numpy as np
import pytest

from switchreduce.worker.agreement import Agreed, Way
from switchreduce.worker.calls import describe_call
from switchreduce.worker.codec import FLAT
from switchreduce.worker.planner import Planner, independent_copies
from switchreduce.worker.stream import Stream

SIZE = 200_000


def vote(planner, density, codec="auto", round_trip=1e-4, seed=0):
    x = (np.random.default_rng(seed).random(SIZE) < density).astype(np.float32)
    return planner.vote(describe_call(0, [x], "sum", codec), Stream([x]), round_trip)


def learn(planner, density, union, way="packed", seconds=0.0, lanes=0):
    spec = describe_call(0, [np.zeros(SIZE, np.float32)], "sum", "auto")
    agreed = Agreed(np.zeros(1, np.uint32), Way(way), round(density * SIZE), False)
    planner.learn(spec, agreed, round(union * SIZE), SIZE, seconds, lanes)


@pytest.mark.parametrize(("density", "expected"), [(0.001, "packed"), (0.05, "packed"), (1.0, "dense")])
def test_auto_follows_the_density(density, expected):
    way, nonzeros = vote(Planner(4), density)
    assert way.codec == expected
    assert nonzeros == pytest.approx(density * SIZE, rel=0.2, abs=20)


def test_supports_that_turn_out_alike_or_not_are_remembered_also_from_dense_calls():
    """16 ranks of 20 %: a union of 97 % if they are independent, of 20 % if alike."""
    planner = Planner(16)
    assert vote(planner, 0.2)[0].codec == "packed"
    learn(planner, 0.2, 0.97)
    assert vote(planner, 0.2)[0].codec == "dense"
    learn(planner, 0.2, 0.2, way="dense")
    assert vote(planner, 0.2)[0].codec == "packed"


def test_a_slow_link_is_worth_more_levels():
    fast, slow = Planner(4, seconds_a_lane=2e-9), Planner(4, seconds_a_lane=3e-6)
    assert vote(fast, 0.05)[0].shape == FLAT
    assert len(vote(slow, 0.05)[0].shape) > 1
    assert len(vote(Planner(4, "bytes", seconds_a_lane=2e-9), 0.05, round_trip=1.0)[0].shape) > 1
    assert vote(slow, 0.05, round_trip=10.0)[0].shape == FLAT


def test_a_lanes_cost_is_measured():
    planner = Planner(4)
    for _ in range(40):
        learn(planner, 0.05, 0.1, seconds=1.0, lanes=1_000_000)
    assert planner.seconds_a_lane == pytest.approx(1e-6, rel=0.01)
    learn(planner, 0.05, 0.1, seconds=100.0, lanes=10)  # too few to say
    assert planner.seconds_a_lane == pytest.approx(1e-6, rel=0.01)


@pytest.mark.parametrize("codec", ["packed", "sketch", "exact", "dense"])
def test_a_codec_that_was_asked_for_is_kept(codec):
    for density in (0.0, 0.5, 1.0):
        assert vote(Planner(4), density, codec)[0].codec == codec


def test_independent_copies():
    assert independent_copies(0.1, 0.1, 4) == pytest.approx(1.0)
    assert independent_copies(0.1, 1 - 0.9**4, 4) == pytest.approx(4.0)
    assert independent_copies(0.1, 0.9, 4) == 4.0
    assert independent_copies(0.1, 0.05, 4) == 1.0
    assert independent_copies(1.0, 1.0, 4) == 1.0
