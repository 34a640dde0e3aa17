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
def _put(data, position, width, value):  # type: ignore[no-untyped-def]
    for i in range(width):
        data[position + i] = np.uint8(value >> np.uint64(8 * (width - 1 - i)) & np.uint64(0xFF))


@njit(cache=True, nogil=True)
def start_run(  # type: ignore[no-untyped-def]
    first, limit, first_row, kind, number, state, chunk, row, op, segment, tries, started
):
    """Put chunks `first`, `first` + 1, ... of a segment into their slots, up to `limit` of them and as far as
    these have the result of their previous chunk. Returns how many; `started` gets the slots."""
    slots = state.shape[0]
    for i in range(limit):
        slot = (first + i) % slots
        if state[slot] != IDLE:
            return i
        # so that this rank's next look at the slot finds it taken, before it is written
        state[slot] = IN_FLIGHT
        chunk[slot] = first + i
        row[slot] = first_row + i
        op[slot] = kind
        segment[slot] = number
        tries[slot] = 0
        started[i] = slot
    return limit


@njit(cache=True, nogil=True)
def write(  # type: ignore[no-untyped-def]
    slots, now, sends, arena, state, chunk, row, op, sent_at, order, tries, layout, data, size, first_word
):
    """Write the slots' datagrams, of `size` bytes each, one behind the other into `data` (uint8), whose other
    fields are there already; from arena to network order."""
    lanes = arena.shape[1]
    words = data.view(np.uint32)
    for i in range(slots.shape[0]):
        slot = slots[i]
        base = i * size
        version = np.uint64((chunk[slot] // state.shape[0]) & 1)
        _put(data, base + layout[OP, 0], layout[OP, 1], np.uint64(op[slot]))
        _put(data, base + layout[SLOT, 0], layout[SLOT, 1], np.uint64(slot))
        _put(data, base + layout[VERSION, 0], layout[VERSION, 1], version)
        _put(data, base + layout[CHUNK, 0], layout[CHUNK, 1], np.uint64(chunk[slot]))
        source = arena[row[slot]]
        start = base // 4 + first_word
        target = words[start : start + lanes]
        for lane in range(lanes):
            target[lane] = _swap(source[lane])
        state[slot] = IN_FLIGHT
        sent_at[slot] = now
        order[slot] = sends + i
        tries[slot] += 1


@njit(cache=True, nogil=True)
def survey(state, chunk, order, sent_at, done_chunk, done_order, lagging):  # type: ignore[no-untyped-def]
    """(slots in flight, when the newest of them was sent, how many lag, when the oldest of these was sent);
    `lagging` gets the slots in flight that a later chunk's packet, sent later, has overtaken."""
    newest = np.int64(-1)
    for slot in range(state.shape[0]):
        newest = max(newest, done_order[slot])
    in_flight = 0
    count = 0
    newest_sent = -np.inf
    oldest_lagging = np.inf
    for slot in range(state.shape[0]):
        if state[slot] != IN_FLIGHT:
            continue
        in_flight += 1
        newest_sent = max(newest_sent, sent_at[slot])
        if order[slot] >= newest:
            continue
        for other in range(state.shape[0]):
            if done_chunk[other] > chunk[slot] and done_order[other] > order[slot]:
                lagging[count] = slot
                count += 1
                oldest_lagging = min(oldest_lagging, sent_at[slot])
                break
    return in_flight, newest_sent, count, oldest_lagging


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
