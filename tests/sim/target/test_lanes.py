"""Wide fields as vectors of 32-bit lanes, in registers, against NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchreduce.sim.target import Frames, Switch

LANES = 256
SUM, OR, MAX, STORE, FETCH, RIPPLE = range(6)


def frame(op: int, cell: int, lanes: np.ndarray) -> bytes:
    return bytes([op, cell, 0, 0]) + lanes.astype(">u4").tobytes()


def lanes_of(data: bytes) -> np.ndarray:
    return np.frombuffer(data[4:], dtype=">u4").astype(np.uint32)


def ripple(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Addition of four 2048-bit numbers."""
    words = []
    for k in range(0, LANES, 64):
        x, y = (int.from_bytes(v[k : k + 64].astype(">u4").tobytes(), "big") for v in (a, b))
        words.append(((x + y) % 2**2048).to_bytes(256, "big"))
    return np.frombuffer(b"".join(words), dtype=">u4").astype(np.uint32)


REFERENCE = {
    SUM: lambda a, b: a + b,
    OR: np.bitwise_or,
    MAX: np.maximum,
    STORE: lambda a, b: a,
    FETCH: lambda a, b: b,
    RIPPLE: ripple,
}
EDGES = np.array([0, 1, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF], dtype=np.uint32)


def some_lanes(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    plain = rng.integers(0, 2**32, LANES, dtype=np.uint32)
    return np.where(rng.random(LANES) < 0.5, plain, rng.choice(EDGES, LANES)).astype(np.uint32)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 2**32)), min_size=1, max_size=12)
)
def test_lane_operations_agree_with_numpy(
    switch_of: Callable[[str], Switch], steps: list[tuple[int, int, int]]
) -> None:
    switch = switch_of("lanes_wide")
    held = {cell: np.zeros(LANES, dtype=np.uint32) for cell in range(4)}
    for cell in held:
        for k in range(4):
            switch.registers[f"I.r{k}"].write(cell, 0)
    for op, cell, seed in steps:
        lanes = some_lanes(seed)
        want = REFERENCE[op](lanes, held[cell])
        [(port, out)] = switch.process(7, frame(op, cell, lanes))
        assert port == 7
        assert np.array_equal(lanes_of(out), want)
        held[cell] = want


def test_a_cell_out_of_range_reads_as_zero_and_keeps_nothing(switch_of: Callable[[str], Switch]) -> None:
    switch = switch_of("lanes_wide")
    lanes = some_lanes(1)
    for _ in range(2):
        [(_, out)] = switch.process(0, frame(SUM, 250, lanes))
        assert np.array_equal(lanes_of(out), lanes)
        [(_, out)] = switch.process(0, frame(RIPPLE, 200, lanes))
        assert np.array_equal(lanes_of(out), lanes)


def test_a_batch_stops_where_the_outgoing_one_is_full_and_goes_on(switch_of: Callable[[str], Switch]) -> None:
    switch = switch_of("lanes_wide")
    sent = [some_lanes(seed) for seed in range(10)]
    incoming, outgoing = Frames.allocate(10, 20_000), Frames.allocate(4, 20_000)
    for k, lanes in enumerate(sent):
        incoming.append(k, frame(STORE, k, lanes))
    got: list[tuple[int, bytes]] = []
    taken = []
    while incoming.cursor < incoming.count:
        outgoing.clear()
        taken.append(switch.process_batch(incoming, outgoing))
        got += [(int(outgoing.port[k]), outgoing.frame(k)) for k in range(outgoing.count)]
    assert taken == [4, 4, 2]
    assert [port for port, _ in got] == list(range(10))
    assert all(np.array_equal(lanes_of(out), lanes) for (_, out), lanes in zip(got, sent, strict=True))


def test_frames_that_lie_outside_their_data_are_refused(switch_of: Callable[[str], Switch]) -> None:
    switch = switch_of("lanes_wide")
    outgoing = Frames.allocate(4, 20_000)
    for offset, length in ((-1, 10), (0, -5), (1000, 1100), (0, 1 << 40)):
        incoming = Frames.allocate(1, 2000)
        incoming.append(0, b"x")
        incoming.offset[0], incoming.length[0] = offset, length
        with pytest.raises(ValueError, match="outside"):
            switch.process_batch(incoming, outgoing)
    incoming = Frames.allocate(1, 2000)
    incoming.append(0, frame(STORE, 0, some_lanes(3)))
    with pytest.raises(ValueError, match="cannot hold"):
        switch.process_batch(incoming, Frames.allocate(4, 500))


def test_a_longer_frame_than_any_before_passes(switch_of: Callable[[str], Switch]) -> None:
    lanes = some_lanes(4)
    payload = bytes(range(256)) * 400
    [(_, out)] = switch_of("lanes_wide").process(0, frame(STORE, 0, lanes) + payload)
    assert out == frame(STORE, 0, lanes) + payload


def test_frames_of_other_types_are_refused() -> None:
    data, numbers = np.zeros(100, np.uint8), np.zeros(4, np.int64)
    Frames(data, numbers, numbers, numbers)
    for arrays in (
        (data.astype(np.int8), numbers, numbers, numbers),
        (data[::2], numbers, numbers, numbers),
        (data, numbers.astype(np.int32), numbers, numbers),
        (data, numbers, numbers[:3], numbers),
    ):
        with pytest.raises(ValueError, match="frames need"):
            Frames(*arrays)
