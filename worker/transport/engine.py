"""The slot protocol without a socket, a clock or a thread.

Datagrams and the time go in; datagrams and the next deadline come out. Whoever drives it, a socket loop, a
simulated network or a test, sees the whole protocol.

Chunks are numbered from 0 for the life of the job, the same on all ranks, since every rank queues the same
segments in the same order. Chunk q uses slot q mod W in version (q div W) mod 2, and only after the result
of chunk q - W, which used the slot's other version, has arrived: that is all the switch's slot rule needs.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from switchreduce.p4.builds import Build, constants, load_build
from switchreduce.p4.packet import datagram_dtype
from switchreduce.worker.transport import kernels
from switchreduce.worker.transport.kernels import IDLE, IN_FLIGHT, LOST
from switchreduce.worker.transport.session import Op, Segment, Session, TransportStats
from switchreduce.worker.transport.window import RoundTrip, Window

MAX_SEGMENTS = 64  # queued and not yet done
MAX_BURST = (
    64  # datagrams of one datagrams_to_send: what one UDP_SEGMENT send may hold (Linux UDP_MAX_SEGMENTS)
)

LOSSY = 0.01  # share of packets that the link itself lost beyond which silence looks like loss at once


class SlotEngine:
    """One rank's end of the slot protocol.

    `rows` is the arena's size in chunks: the most that allocated segments hold together.
    """

    def __init__(self, session: Session, build: Build, rows: int, first_chunk: int = 0) -> None:
        self.session = session
        self.lanes = build.lanes
        self.datagram = datagram_dtype(build)
        self.stats = TransportStats()
        self.round_trip = RoundTrip()
        self.window = Window(session.slots, session.world_size)

        self._arena = np.zeros((rows, build.lanes), np.uint32)
        self._free_rows: list[tuple[int, int]] = [(0, rows)]  # (first, count), ascending
        self._segments: list[Segment | None] = [None] * MAX_SEGMENTS
        self._missing = np.zeros(MAX_SEGMENTS, np.int64)
        self._queue: deque[Segment] = deque()  # segments with chunks not sent yet
        self._queued = 0  # chunks of the queue's first segment that were sent
        self._next_chunk = first_chunk  # of the next segment
        self._next_send = first_chunk  # chunk that is sent first, next

        slots = session.slots
        self._state = np.zeros(slots, np.int64)
        self._chunk = np.full(slots, -1, np.int64)
        self._row = np.zeros(slots, np.int64)
        self._op = np.zeros(slots, np.int64)
        self._segment = np.zeros(slots, np.int64)
        self._sent_at = np.zeros(slots, np.float64)
        self._order = np.zeros(slots, np.int64)  # of the last transmission, over all slots
        self._tries = np.zeros(slots, np.int64)
        self._lagging = np.zeros(slots, np.int64)  # scratch
        self._sends = 0
        self._done_chunk = np.full(slots, -1, np.int64)  # the slot's last chunk whose result came
        self._done_order = np.full(slots, -1, np.int64)  # and the order of its transmission
        self._last_progress = 0.0
        self._link_losses = 0  # packets that no queue lost

        self._layout = kernels.field_layout(self.datagram)
        self._first_word = self.datagram.fields["lanes"][1] // 4  # type: ignore[index]
        self._expected = np.zeros(len(kernels.FIELDS), np.uint64)
        for field, value in (
            (kernels.MAGIC, constants.MAGIC),
            (kernels.KIND, constants.KIND_RESULT),
            (kernels.LANE_COUNT, build.lanes),
            (kernels.JOB, session.job),
            (kernels.RANK, session.rank),
            (kernels.GENERATION, session.generation),
        ):
            self._expected[field] = value
        self._outgoing = np.zeros(MAX_BURST, self.datagram)
        self._outgoing_bytes = self._outgoing.view(np.uint8).reshape(-1)
        self._burst = np.zeros(MAX_BURST, np.int64)  # slots that are sent next
        for name, value in (
            ("magic", constants.MAGIC),
            ("kind", constants.KIND_CONTRIBUTION),
            ("lane_count", build.lanes),
            ("job", session.job),
            ("rank", session.rank),
            ("generation", session.generation),
        ):
            self._outgoing[name] = value

    # -- segments -----------------------------------------------------------------------------------

    def allocate(self, op: Op, chunks: int) -> Segment | None:
        """Room for `chunks` chunks, zeroed, to be filled and queued; None while the arena is too full.

        Raises ValueError if the arena could never hold them.
        """
        if chunks > self._arena.shape[0]:
            raise ValueError(f"a segment of {chunks} chunks does not fit an arena of {self._arena.shape[0]}")
        for i, (first, count) in enumerate(self._free_rows):
            if count >= chunks:
                self._free_rows[i : i + 1] = [(first + chunks, count - chunks)] if count > chunks else []
                lanes = self._arena[first : first + chunks]
                lanes[...] = 0
                return Segment(op, lanes, first)
        return None

    def release(self, segment: Segment) -> None:
        """Give a segment's room back, after which its lanes mean nothing."""
        self._free_rows.append((segment.row, segment.chunks))
        self._free_rows.sort()
        merged: list[tuple[int, int]] = []
        for first, count in self._free_rows:
            if merged and sum(merged[-1]) == first:
                merged[-1] = (merged[-1][0], merged[-1][1] + count)
            else:
                merged.append((first, count))
        self._free_rows = merged

    def queue(self, segment: Segment) -> None:
        """Send a filled segment after those queued before it; every rank must queue the same."""
        segment.first_chunk = self._next_chunk
        self._next_chunk += segment.chunks
        if segment.chunks == 0:
            segment.done = True
            return
        segment.number = self._segments.index(None)
        self._segments[segment.number] = segment
        self._missing[segment.number] = segment.chunks
        self._queue.append(segment)

    @property
    def next_chunk(self) -> int:
        """Number of the chunk that is queued next."""
        return self._next_chunk

    def abandon(self, first: int) -> None:
        """Forget every segment; what is queued next begins one lap of the slots after chunk `first`.

        For when all ranks have the result of `first` and no rank will use what any queued after it: fewer
        chunks than a lap, perhaps not the same on all ranks. From `first` + W on the ranks are in step again,
        and a slot's next chunk is in its other version, as ever, so a rank that comes to this later than the
        others still finds `first`'s result.
        """
        assert self._next_chunk <= first + self.session.slots
        self._state[:] = IDLE
        self._queue.clear()
        self._queued = 0
        self._segments = [None] * MAX_SEGMENTS
        self._free_rows = [(0, self._arena.shape[0])]
        self._next_chunk = self._next_send = first + self.session.slots

    @property
    def idle(self) -> bool:
        """Whether every queued segment is done."""
        return not self._queue and not self._state.any()

    # -- datagrams in -------------------------------------------------------------------------------

    def receive_datagrams(self, data: np.ndarray, length: int, size: int, now: float) -> None:
        """Take `length` bytes of `data` (uint8): datagrams of `size` bytes each, the last perhaps shorter.

        Never raises for what the bytes hold; what is not a result for this rank is counted and dropped.
        """
        if length == 0 or size != self.datagram.itemsize:
            count = 1 if size <= 0 else -(-length // size)
            self.stats.received += count
            self.stats.malformed += count
            return
        count, rest = divmod(length, size)
        self.stats.received += count + (rest > 0)
        self.stats.malformed += rest > 0
        tally = np.zeros(4, np.int64)
        accepted = np.empty(count, np.int64)
        taken, round_trip = kernels.accept(
            data, count, size, self._layout, self._expected, self._first_word,
            self._arena, self._state, self._chunk, self._row, self._op, self._segment,
            self._sent_at, self._tries, self._missing, now, tally, accepted,
        )  # fmt: skip
        self.stats.results += taken
        self.stats.duplicates += int(tally[kernels.DUPLICATE])
        self.stats.malformed += int(tally[kernels.MALFORMED])
        self.stats.foreign += int(tally[kernels.FOREIGN])
        if tally[kernels.DUPLICATE]:
            self.round_trip.spurious(now)
        if not taken:
            return
        slots = accepted[:taken]
        for number in set(self._segment[slots].tolist()):
            segment = self._segments[number]
            if self._missing[number] == 0 and segment is not None:
                segment.done = True
                self._segments[number] = None
        self._done_chunk[slots] = self._chunk[slots]
        self._done_order[slots] = self._order[slots]
        self._last_progress = now
        self.round_trip.lossy = self._link_losses > self.stats.sent * LOSSY
        if round_trip >= 0:
            self.round_trip.observe(round_trip, now)
        self.round_trip.backoff = 0
        self.window.grow(taken, now, self.round_trip.waiting)
        self._detect_losses(now)

    def _survey(self) -> tuple[int, float, np.ndarray, float]:
        """(slots in flight, when the newest was sent, those that lag, when the oldest of these was sent).

        One lags if a later chunk's packet, sent later, has overtaken it. An earlier chunk that was sent again
        says nothing: a rank that is behind has yet to contribute to what comes after it.
        """
        in_flight, newest, count, oldest = kernels.survey(
            self._state, self._chunk, self._order, self._sent_at, self._done_chunk, self._done_order,
            self._lagging,
        )  # fmt: skip
        return in_flight, newest, self._lagging[:count], oldest

    def _detect_losses(self, now: float) -> None:
        """RFC 8985 (RACK): lost is what lags behind a later packet by more than reordering explains."""
        _, _, lagging, oldest = self._survey()
        if lagging.size == 0 or oldest + self.round_trip.patience > now:
            return
        lost = lagging[self._sent_at[lagging] + self.round_trip.patience <= now]
        if lost.size:
            self._state[lost] = LOST
            trip = self.round_trip
            if self.window.shrink(int(lost.size), now, trip.smoothed, trip.waiting):
                self.stats.losses += 1
            elif not self.window.recovering(now):
                self._link_losses += lost.size

    # -- datagrams out ------------------------------------------------------------------------------

    def datagrams_to_send(self, now: float) -> np.ndarray:
        """What to send now: structured array of at most MAX_BURST datagrams, valid until the next call.

        Call again until it is empty.
        """
        in_flight = int(np.count_nonzero(self._state == IN_FLIGHT))
        budget = min(self.window.packets - in_flight, MAX_BURST)
        if budget <= 0:
            return self._outgoing[:0]
        lost = np.flatnonzero(self._state == LOST)
        if lost.size:
            lost = lost[np.argsort(self._chunk[lost])][:budget]
            self.stats.retransmits += lost.size
            self._burst[: lost.size] = lost
        count = lost.size
        while count < budget and self._queue:
            started = self._start_run(budget - count, self._burst[count:])
            if started == 0:
                break
            count += started
        return self._write(self._burst[:count], now)

    def _start_run(self, limit: int, started: np.ndarray) -> int:
        """Put up to `limit` chunks of the queue's first segment into their slots; how many."""
        segment = self._queue[0]
        limit = min(limit, segment.chunks - self._queued, self.session.slots)
        count: int = kernels.start_run(
            self._next_send, limit, segment.row + self._queued, int(segment.op), segment.number,
            self._state, self._chunk, self._row, self._op, self._segment, self._tries, started,
        )  # fmt: skip
        self._next_send += count
        self._queued += count
        if self._queued == segment.chunks:
            self._queue.popleft()
            self._queued = 0
        return count

    def _write(self, slots: np.ndarray, now: float) -> np.ndarray:
        count = slots.size
        if count:
            kernels.write(
                slots, now, self._sends, self._arena, self._state, self._chunk, self._row, self._op,
                self._sent_at, self._order, self._tries, self._layout, self._outgoing_bytes,
                self.datagram.itemsize, self._first_word,
            )  # fmt: skip
            self._sends += count
            self.stats.sent += count
            self.stats.bytes_sent += count * self.datagram.itemsize
        return self._outgoing[:count]

    # -- time ---------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When `handle_timer` wants to be called, or None while nothing is in flight."""
        in_flight, newest_send, _, oldest_lagging = self._survey()
        if in_flight == 0:
            return None
        timeout_at = max(self._last_progress, newest_send) + self.round_trip.timeout
        return float(min(timeout_at, oldest_lagging + self.round_trip.patience))

    def handle_timer(self, now: float) -> None:
        """Act on a deadline that has passed: what lags is lost, and silence makes the oldest lost."""
        self._detect_losses(now)
        in_flight = np.flatnonzero(self._state == IN_FLIGHT)
        if in_flight.size == 0:
            return
        timeout_at = max(self._last_progress, float(self._sent_at[in_flight].max())) + self.round_trip.timeout
        if now >= timeout_at:
            self.stats.timeouts += 1
            self.round_trip.backoff += 1
            # few at first, as the silence may be a busy machine's; as many as any switch takes where the link
            # loses packets or stays silent, as the loss of all of few would let the timeout grow
            count = self.window.least
            if not self.round_trip.lossy:
                count = min(2**self.round_trip.backoff, count)
            oldest = in_flight[np.argsort(self._chunk[in_flight])][:count]
            self._state[oldest] = LOST


def warm_up() -> None:
    """Run every kernel once on one packet's worth of data."""
    engine = SlotEngine(Session(job=1, generation=1, rank=0, world_size=1, slots=1), load_build(), rows=1)
    segment = engine.allocate(Op.SUM, 1)
    assert segment is not None
    engine.queue(segment)
    result = engine.datagrams_to_send(0.0).copy()
    result["kind"] = constants.KIND_RESULT
    data = result.view(np.uint8).reshape(-1)
    engine.receive_datagrams(data, data.size, data.size, 0.0)
    assert segment.done


__all__ = ["MAX_BURST", "Op", "Segment", "Session", "SlotEngine", "TransportStats", "warm_up"]
