from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from switchreduce.sim.drivers.impairment import Impairment, Rates

probabilities = st.sampled_from([0.0, 0.1, 0.5, 1.0])


def run(impairment: Impairment, batches: list[int]) -> np.ndarray:
    """Which packets go on, numbered through over all batches."""
    start = np.cumsum([0, *batches])
    plans = [impairment.inward.plan(n) + at for n, at in zip(batches, start[:-1], strict=True)]
    return np.concatenate(plans) if plans else np.zeros(0, np.int64)


@given(probabilities, probabilities, st.integers(0, 5), st.lists(st.integers(0, 40), max_size=8))
def test_what_is_lost_and_doubled_depends_on_the_seed_and_not_on_the_batches(
    loss: float, duplicate: float, seed: int, batches: list[int]
) -> None:
    rates = Rates(loss=loss, duplicate=duplicate)
    split = run(Impairment(rates, seed), batches)
    assert split.tolist() == run(Impairment(rates, seed), [sum(batches)]).tolist()


@given(probabilities, probabilities, probabilities, st.integers(0, 200))
def test_counts_account_for_every_packet(loss: float, duplicate: float, reorder: float, count: int) -> None:
    direction = Impairment(Rates(loss, duplicate, reorder)).inward
    plan = direction.plan(count)
    assert len(plan) == count - direction.lost + direction.duplicated
    assert np.isin(plan, np.arange(count)).all()
    assert np.bincount(plan, minlength=1).max(initial=0) <= 2


def test_rates_are_met_and_directions_are_independent() -> None:
    impairment = Impairment(Rates(loss=0.1, duplicate=0.05, reorder=0.02), seed=3)
    inward, outward = impairment.inward.plan(100_000), impairment.outward.plan(100_000)
    for direction in (impairment.inward, impairment.outward):
        assert abs(direction.lost / 100_000 - 0.1) < 0.01
        assert abs(direction.duplicated / 100_000 - 0.045) < 0.01
        assert abs(direction.reordered / 100_000 - 0.02) < 0.005
    assert inward.tolist() != outward.tolist()


def test_no_rates_change_nothing() -> None:
    assert Impairment(Rates()).inward.plan(5).tolist() == [0, 1, 2, 3, 4]
    assert not Rates().any
