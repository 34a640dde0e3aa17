"""The engine against the compiled P4 program, under every schedule of the network that hypothesis finds."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchreduce.p4.builds import load_build
from switchreduce.sim.network import VirtualNetwork
from switchreduce.worker.transport.engine import Op, Session, SlotEngine
from tests.worker.transport.simulated import (
    SWITCH_ADDRESS,
    SimulatedJob,
    combined,
    network_fates,
    perfect,
    queue_all,
    slow_queue,
)

BUILD = load_build("wide256")
VIRTUAL_LIMIT = 600.0  # s

EXTREMES = np.array([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF], np.uint32)


def random_lanes(rng: np.random.Generator, *shape: int) -> np.ndarray:
    lanes = rng.integers(0, 1 << 32, shape, np.uint32)
    extreme = rng.random(shape) < 0.2
    lanes[extreme] = rng.choice(EXTREMES, int(extreme.sum()))
    return lanes


@settings(max_examples=60)
@given(
    fate=network_fates(),
    ranks=st.integers(1, 5),
    slots=st.integers(1, 9),
    segments=st.lists(st.tuples(st.sampled_from(list(Op)), st.integers(0, 12)), min_size=1, max_size=4),
    first_chunk=st.sampled_from([0, 2**31 - 5, 2**32 - 5]),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_rank_gets_the_exact_result(wide_switch, fate, ranks, slots, segments, first_chunk, seed):
    rng = np.random.default_rng(seed)
    network = VirtualNetwork(wide_switch, BUILD, SWITCH_ADDRESS, fate)
    job = SimulatedJob(wide_switch, BUILD, network, ranks, slots, first_chunk=first_chunk)
    try:
        queued, expected = [], []
        for op, chunks in segments:
            contributions = random_lanes(rng, ranks, chunks, BUILD.lanes)
            queued.append(queue_all(job, op, contributions))
            expected.append(combined(op, contributions))
        network.run(lambda: all(engine.idle for engine in job.engines), VIRTUAL_LIMIT)
    finally:
        job.close()
    for per_rank, wanted in zip(queued, expected, strict=True):
        for segment in per_rank:
            assert segment.done
            np.testing.assert_array_equal(segment.lanes, wanted)
    for engine in job.engines:
        assert engine.stats.malformed == 0


@settings(max_examples=15)
@given(fate=network_fates(), seed=st.integers(0, 2**32 - 1))
def test_two_jobs_at_once_do_not_touch_each_other(wide_switch, fate, seed):
    rng = np.random.default_rng(seed)
    network = VirtualNetwork(wide_switch, BUILD, SWITCH_ADDRESS, fate)
    jobs = [
        SimulatedJob(wide_switch, BUILD, network, 2, 4, slot_base=0, first_port=1),
        SimulatedJob(wide_switch, BUILD, network, 3, 5, slot_base=4, first_port=11),
    ]
    try:
        inputs = [random_lanes(rng, len(job.engines), 10, BUILD.lanes) for job in jobs]
        queued = [queue_all(job, Op.SUM, lanes) for job, lanes in zip(jobs, inputs, strict=True)]
        network.run(lambda: all(e.idle for job in jobs for e in job.engines), VIRTUAL_LIMIT)
    finally:
        for job in jobs:
            job.close()
    for segments, lanes in zip(queued, inputs, strict=True):
        for segment in segments:
            np.testing.assert_array_equal(segment.lanes, combined(Op.SUM, lanes))


@settings(max_examples=15)
@given(fate=network_fates(), dies_after=st.integers(1, 200), seed=st.integers(0, 2**32 - 1))
def test_a_job_after_a_killed_job_does_not_see_its_registers(wide_switch, fate, dies_after, seed):
    rng = np.random.default_rng(seed)
    network = VirtualNetwork(wide_switch, BUILD, SWITCH_ADDRESS, fate)
    killed = SimulatedJob(wide_switch, BUILD, network, 3, 4, first_port=1)
    queue_all(killed, Op.SUM, random_lanes(rng, 3, 12, BUILD.lanes))
    network.run(lambda: network.packets >= dies_after or all(e.idle for e in killed.engines), VIRTUAL_LIMIT)
    killed.close()
    for port in (1, 2, 3):
        network.detach(port)  # what they sent may still be under way

    following = SimulatedJob(wide_switch, BUILD, network, 3, 4, first_port=11)
    lanes = random_lanes(rng, 3, 12, BUILD.lanes)
    try:
        segments = queue_all(following, Op.SUM, lanes)
        network.run(lambda: all(e.idle for e in following.engines), 2 * VIRTUAL_LIMIT)
    finally:
        following.close()
    for segment in segments:
        np.testing.assert_array_equal(segment.lanes, combined(Op.SUM, lanes))


def test_a_clean_network_needs_no_retransmission(wide_switch):
    network = VirtualNetwork(wide_switch, BUILD, SWITCH_ADDRESS, perfect)
    job = SimulatedJob(wide_switch, BUILD, network, 4, 16, rows=300)
    try:
        queue_all(job, Op.SUM, np.ones((4, 300, BUILD.lanes), np.uint32))
        network.run(lambda: all(e.idle for e in job.engines), VIRTUAL_LIMIT)
    finally:
        job.close()
    assert [e.stats.retransmits for e in job.engines] == [0] * 4
    assert [e.stats.sent for e in job.engines] == [300] * 4


def run_job(switch, fate, slots: int, chunks: int) -> tuple[float, float]:
    """(virtual seconds, share of packets sent again) of a job of 4 ranks."""
    network = VirtualNetwork(switch, BUILD, SWITCH_ADDRESS, fate)
    job = SimulatedJob(switch, BUILD, network, 4, slots, rows=chunks)
    try:
        queue_all(job, Op.SUM, np.ones((4, chunks, BUILD.lanes), np.uint32))
        network.run(lambda: all(e.idle for e in job.engines), VIRTUAL_LIMIT)
    finally:
        job.close()
    stats = [engine.stats for engine in job.engines]
    return network.now, sum(s.retransmits for s in stats) / sum(s.sent for s in stats)


@pytest.mark.parametrize(("leg", "share"), [(1e-4, 0.04), (1e-2, 0.1)], ids=["near", "far"])
def test_the_window_finds_what_a_slow_switch_takes(wide_switch, leg, share):
    """It drops what finds 32 packets waiting, which is far less than four ranks with 128 slots could send."""
    chunks, service = 1500, 5e-5
    seconds, again = run_job(wide_switch, slow_queue(32, service, leg), 128, chunks)
    assert again < share  # most of it in the first moments
    least_seconds = 4 * chunks * service + chunks / 128 * 2 * leg
    assert seconds < 3 * least_seconds


def test_random_losses_do_not_close_the_window(wide_switch):
    leg, runs = 1e-4, []
    for seed in range(3):
        luck = random.Random(seed)

        def fate(*_, luck=luck):
            return (leg,) if luck.random() >= 0.05 else ()

        runs.append(run_job(wide_switch, fate, 64, 600))
    seconds, again = (sorted(column)[1] for column in zip(*runs, strict=True))
    assert 600 * 2 * leg / seconds > 4  # chunks a round trip; a window that takes them for a queue's: 2.6
    assert again < 0.3  # 23 % of chunks lose a contribution or a result


def test_a_moment_of_silence_is_not_a_storm(wide_switch):
    """Everything stands still for 45 ms, as on a busy machine, which is longer than a timeout."""

    def fate(_direction: object, _port: int, now: float):
        arrival = now + 1e-3
        return (max(arrival, 0.055) - now if 0.01 < arrival < 0.055 else 1e-3,)

    _, again = run_job(wide_switch, fate, 64, 1000)
    assert again * 1000 < 8


def test_a_rank_that_comes_late_finds_the_others_waiting(wide_switch):
    network = VirtualNetwork(wide_switch, BUILD, SWITCH_ADDRESS, perfect)
    job = SimulatedJob(wide_switch, BUILD, network, 3, 8)
    lanes = np.arange(3 * 20 * BUILD.lanes, dtype=np.uint32).reshape(3, 20, BUILD.lanes)
    try:
        early = []
        for engine, part in zip(job.engines[:2], lanes[:2], strict=True):
            segment = engine.allocate(Op.SUM, 20)
            segment.lanes[...] = part
            engine.queue(segment)
            early.append(segment)
        network.run(lambda: network.now > 5, 10)
        sent = sum(engine.stats.sent for engine in job.engines[:2])
        assert sent < 300  # they wait with patience
        late = job.engines[2].allocate(Op.SUM, 20)
        late.lanes[...] = lanes[2]
        job.engines[2].queue(late)
        network.run(lambda: all(e.idle for e in job.engines), 10)
    finally:
        job.close()
    for segment in (*early, late):
        np.testing.assert_array_equal(segment.lanes, combined(Op.SUM, lanes))


def in_flight_engine() -> tuple[SlotEngine, np.ndarray]:
    """An engine with four chunks in flight, and the results that it waits for."""
    engine = SlotEngine(Session(job=3, generation=77, rank=1, world_size=2, slots=8), BUILD, rows=4)
    segment = engine.allocate(Op.SUM, 4)
    segment.lanes[...] = 5
    engine.queue(segment)
    results = engine.datagrams_to_send(0.0).copy()
    results["kind"] = 3
    return engine, results


def feed(engine: SlotEngine, data: bytes, size: int) -> None:
    engine.receive_datagrams(np.frombuffer(data, np.uint8).copy(), len(data), size, 0.01)


@given(data=st.binary(max_size=3000), size=st.integers(0, 1500))
def test_arbitrary_bytes_are_counted_and_dropped(data, size):
    engine, _ = in_flight_engine()
    feed(engine, data, size if data else 0)
    assert engine.stats.results == 0
    assert engine.stats.malformed + engine.stats.foreign == engine.stats.received > 0
    assert not engine.idle


@given(st.data())
def test_a_result_with_any_header_byte_changed_is_dropped(data):
    engine, results = in_flight_engine()
    frame = bytearray(results[0].tobytes())
    header = len(frame) - 4 * BUILD.lanes
    position = data.draw(st.integers(0, header - 1))
    frame[position] ^= data.draw(st.integers(1, 255))
    before = engine._arena.copy()
    feed(engine, bytes(frame), len(frame))
    assert engine.stats.results == 0
    np.testing.assert_array_equal(engine._arena, before)
    feed(engine, results[0].tobytes(), len(frame))
    assert engine.stats.results == 1


def test_a_result_counts_once_however_often_it_comes():
    engine, results = in_flight_engine()
    feed(engine, results.tobytes() * 2, results.dtype.itemsize)
    assert (engine.stats.results, engine.stats.duplicates) == (4, 4)
    assert engine.idle


def test_an_arena_gives_room_back():
    engine = SlotEngine(Session(1, 1, 0, 1, 4), BUILD, rows=10)
    first, second, third = (engine.allocate(Op.SUM, n) for n in (4, 3, 3))
    assert engine.allocate(Op.SUM, 1) is None
    engine.release(second)
    engine.release(first)
    assert engine.allocate(Op.SUM, 7) is not None
    engine.release(third)
    assert engine.allocate(Op.SUM, 4) is None
    with pytest.raises(ValueError, match="does not fit"):
        engine.allocate(Op.SUM, 11)
