"""The packets that switches are measured with obey the slot rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchreduce.p4.builds import load_build
from switchreduce.sim.bench.contributions import Numbers, contributions

BUILD = load_build("wide256")


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 3), st.integers(1, 5))
def test_advancing_gives_the_next_chunk_of_each_slot(count, spare, first, steps):
    slots = count + spare
    moved = contributions(BUILD, 2, range(first, first + count), slots)
    numbers = Numbers(moved, slots)
    for _ in range(steps):
        numbers.advance()
    start = first + steps * slots
    expected = contributions(BUILD, 2, range(start, start + count), slots)
    assert moved.tobytes() == expected.tobytes()
    assert (moved["slot"] < slots).all()


def test_chunk_numbers_wrap_around():
    moved = contributions(BUILD, 0, range(2**32 - 2, 2**32), 2)
    Numbers(moved, 2).advance()
    assert moved["chunk"].tolist() == [0, 1]
    assert moved["version"].tolist() == [0, 0]


@pytest.mark.parametrize("name", ["wide256", "jumbo2048"])
def test_ranks_have_lanes_of_their_own(name):
    build = load_build(name)
    ours, theirs = (contributions(build, rank, range(3), 3) for rank in (0, 1))
    assert ours["lanes"].shape == (3, build.lanes)
    assert (ours["lanes"] != theirs["lanes"]).mean() > 0.99
