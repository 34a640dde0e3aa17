"""Slot ranges and ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchreduce.controller.slots import Capacity, Exhausted, IdPool, Leases, SlotPool

CAPACITY = Capacity(slots=64, jobs=6, endpoints=40, slots_least=2)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 7)), max_size=40))
def test_slot_ranges_stay_apart_and_come_back(steps):
    pool = SlotPool(64)
    held = []
    for wanted, which in steps:
        if which < len(held):
            pool.give_back(held.pop(which))
        free = set(range(64)) - {slot for taken in held for slot in taken}
        runs = [len(gap) for gap in pool.gaps()]
        assert sum(runs) == len(free) == pool.free
        taken = pool.take(wanted, 2)
        if taken is None:
            assert max(runs, default=0) < 2
        else:
            assert set(taken) <= free
            assert len(taken) == min(wanted, max(runs))
            held.append(taken)
    for taken in held:
        pool.give_back(taken)
    assert pool.gaps() == [range(64)]


def test_first_fit_takes_the_lowest_range():
    pool = SlotPool(64)
    first, second = pool.take(16, 2), pool.take(16, 2)
    pool.give_back(first)
    assert pool.take(8, 2) == range(8)
    assert pool.take(20, 2) == range(32, 52)
    assert second == range(16, 32)


def test_the_lowest_id_is_taken_first():
    pool = IdPool(range(1, 5))
    assert [pool.take(), pool.take(), pool.take()] == [1, 2, 3]
    pool.give_back([2])
    assert pool.take() == 2
    assert len(pool) == 1


@given(st.lists(st.tuples(st.integers(1, 16), st.integers(1, 30), st.booleans()), max_size=30))
def test_leases_share_nothing(asks):
    leases = Leases(CAPACITY)
    for world_size, wanted, give_back in asks:
        if give_back and leases.held:
            leases.give_back(next(iter(leases.held)))
        before = dict(leases.held)
        try:
            leases.take(world_size, wanted, "job")
        except Exhausted:
            assert leases.held == before
        held = list(leases.held)
        for ids in (
            [lease.job_id for lease in held],
            [lease.group for lease in held],
            [endpoint for lease in held for endpoint in lease.endpoints],
            [slot for lease in held for slot in lease.slots],
        ):
            assert len(ids) == len(set(ids))
        assert all(lease.job_id and lease.group and all(lease.endpoints) for lease in held)
    for lease in list(leases.held):
        leases.give_back(lease)
    assert leases.slots.free == CAPACITY.slots


def test_a_refusal_says_what_is_free_and_who_holds_the_rest():
    leases = Leases(CAPACITY)
    leases.take(2, 63, "training")
    with pytest.raises(Exhausted, match=r"needs 2 slots.* 1 of 64 are free: 'training' holds 63"):
        leases.take(2, 10, "other")
    with pytest.raises(Exhausted, match="50 ranks need as many endpoints and 38 of 40 are free"):
        leases.take(50, 10, "other")
    assert leases.take(1, 1, "tiny").slots == range(63, 64)
