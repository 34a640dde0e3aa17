"""The engine's loops over packets, compiled.

A datagram is 32-bit words in network order; `FIELDS` of its slot header are read by offset and width, both
taken from the dtype that comes from the compiled P4 program.
"""

from __future__ import annotations

import numpy as np
from numba import njit

FIELDS = ("magic", "kind", "op", "lane_count", "job", "rank", "version", "slot", "chunk", "generation")
MAGIC, KIND, OP, LANE_COUNT, JOB, RANK, VERSION, SLOT, CHUNK, GENERATION = range(len(FIELDS))

# What became of a datagram; indexes of the tally that `accept` returns.
RESULT, DUPLICATE, MALFORMED, FOREIGN = range(4)

# State of a slot.
IDLE, IN_FLIGHT, LOST = range(3)


def field_layout(datagram: np.dtype) -> np.ndarray:
    """(offset, width) in bytes of every one of `FIELDS`: int64 of shape (len(FIELDS), 2)."""
    fields = datagram.fields
    assert fields is not None
    return np.array([(fields[name][1], fields[name][0].itemsize) for name in FIELDS], np.int64)


@njit(cache=True, nogil=True)
def _read(data, position, width):  # type: ignore[no-untyped-def]
    value = np.uint64(0)
    for i in range(width):
        value = (value << np.uint64(8)) | np.uint64(data[position + i])
    return value


@njit(cache=True, nogil=True)
def _swap(word):  # type: ignore[no-untyped-def]
    return (
        (word >> np.uint32(24))
        | ((word >> np.uint32(8)) & np.uint32(0xFF00))
        | ((word << np.uint32(8)) & np.uint32(0xFF0000))
        | (word << np.uint32(24))
    )


@njit(cache=True, nogil=True)
def write_lanes(arena, rows, words, first_word):  # type: ignore[no-untyped-def]
    """Copy arena rows into datagrams, to network order.

    arena uint32 (rows, lanes), rows int64 (n,), words uint32 (>= n, words per datagram).
    """
    lanes = arena.shape[1]
    for i in range(rows.shape[0]):
        source = arena[rows[i]]
        target = words[i, first_word : first_word + lanes]
        for lane in range(lanes):
            target[lane] = _swap(source[lane])


@njit(cache=True, nogil=True)
def accept(  # type: ignore[no-untyped-def]
    data,
    count,
    size,
    layout,
    expected,
    first_word,
    arena,
    state,
    chunk,
    row,
    op,
    segment,
    sent_at,
    tries,
    missing,
    now,
    tally,
    accepted,
):
    """Take `count` datagrams of `size` bytes each from `data` (uint8).

    `expected` (uint64 per field) is what a result for this rank must hold in the fields that never change.
    Results of slots in flight are copied into the arena; the slot becomes idle and its segment's count of
    missing results falls. `accepted` gets the slots in order of arrival. Returns how many, and the shortest
    round trip of a packet that was sent once (or -1).
    """
    lanes = arena.shape[1]
    words = data[: count * size].view(np.uint32).reshape(count, size // 4)
    taken = 0
    round_trip = -1.0
    for i in range(count):
        base = i * size
        if (
            _read(data, base + layout[MAGIC, 0], layout[MAGIC, 1]) != expected[MAGIC]
            or _read(data, base + layout[LANE_COUNT, 0], layout[LANE_COUNT, 1]) != expected[LANE_COUNT]
            or _read(data, base + layout[KIND, 0], layout[KIND, 1]) != expected[KIND]
        ):
            tally[MALFORMED] += 1
            continue
        slot = np.int64(_read(data, base + layout[SLOT, 0], layout[SLOT, 1]))
        if (
            _read(data, base + layout[JOB, 0], layout[JOB, 1]) != expected[JOB]
            or _read(data, base + layout[GENERATION, 0], layout[GENERATION, 1]) != expected[GENERATION]
            or _read(data, base + layout[RANK, 0], layout[RANK, 1]) != expected[RANK]
            or slot >= state.shape[0]
        ):
            tally[FOREIGN] += 1
            continue
        number = _read(data, base + layout[CHUNK, 0], layout[CHUNK, 1])
        wire_chunk = np.uint64(chunk[slot]) & np.uint64(0xFFFFFFFF)
        version = np.uint64((chunk[slot] // state.shape[0]) & 1)
        if state[slot] == IDLE or number != wire_chunk:
            tally[DUPLICATE] += 1
            continue
        if _read(data, base + layout[VERSION, 0], layout[VERSION, 1]) != version or _read(
            data, base + layout[OP, 0], layout[OP, 1]
        ) != np.uint64(op[slot]):
            tally[FOREIGN] += 1
            continue
        target = arena[row[slot]]
        source = words[i, first_word : first_word + lanes]
        for lane in range(lanes):
            target[lane] = _swap(source[lane])
        state[slot] = IDLE
        missing[segment[slot]] -= 1
        if tries[slot] == 1 and (round_trip < 0 or now - sent_at[slot] < round_trip):
            round_trip = now - sent_at[slot]
        accepted[taken] = slot
        taken += 1
    tally[RESULT] += taken
    return taken, round_trip
