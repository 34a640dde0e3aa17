"""How long to wait for a result and how many packets to keep in flight.

Both are functions of measured round trips and losses only; time is an argument.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

# RFC 6298 names and gains.
ALPHA = 1 / 8
BETA = 1 / 4
K = 4

INITIAL_RTO = 0.05  # s, before any measurement
MIN_RTO = 0.02  # s: below it a busy host's scheduling, or a slow switch's queue, looks like loss
LOSSY_RTO = 0.001  # s: on a link that loses packets
MAX_DISORDER = 4  # so that a packet may be late by a whole round trip (RFC 8985, section 6.2)
MAX_RTO = 0.5  # s: a straggling rank's first packet finds the others still asking this often

SAFE_IN_FLIGHT = 32  # packets from all ranks together: what BMv2 takes in one burst without losing any
MIN_WINDOW = 4  # packets of one rank
SHRINK = 0.7  # RFC 9438 (CUBIC), section 4.6
MUCH = 1 / 2  # of the window lost in one round trip: a queue too short to show in the round trip
HOLD = 1.0  # s without a queue's loss after which the window grows past where it lost (2 to 3 s in BBRv3)
LEAST_AGE = 10.0  # s after which the least round trip is measured anew (BBR's RTprop filter)


class Least:
    """The least of the samples of the last one to two `age` s (after the filters of BBR and Copa)."""

    def __init__(self) -> None:
        self._began = 0.0
        self._now = math.inf
        self._before = math.inf

    def observe(self, sample: float, now: float, age: float) -> None:
        if now - self._began >= age:
            self._before = self._now if now - self._began < 2 * age else math.inf
            self._now = math.inf
            self._began = now
        self._now = min(self._now, sample)

    @property
    def value(self) -> float:
        return min(self._now, self._before)


@dataclass
class RoundTrip:
    """Round-trip times: smoothed, with the retransmission timeout (RFC 6298), and the least of late."""

    smoothed: float = 0.0
    variation: float = 0.0
    backoff: int = 0
    lossy: bool = False  # the link loses packets, so that silence is more likely loss than a busy machine
    disorder: int = 1  # quarters of a round trip by which a packet may be late and not lost
    disorder_since: float = 0.0
    least: Least = field(default_factory=Least)
    standing: Least = field(default_factory=Least)
    """The least of about the last round trip: what even the luckiest packet waits."""

    def observe(self, sample: float, now: float) -> None:
        """Take a round trip in seconds of a packet that was sent once (Karn's rule).

        A result also waits for the slowest rank, which says nothing about the network, so one sample may
        move the estimate by no more than the present timeout.
        """
        self.least.observe(sample, now, LEAST_AGE)
        self.standing.observe(sample, now, self.smoothed)
        sample = min(sample, self.base_timeout)
        if self.smoothed == 0.0:
            self.smoothed = sample
            self.variation = sample / 2
        else:
            self.variation += BETA * (abs(self.smoothed - sample) - self.variation)
            self.smoothed += ALPHA * (sample - self.smoothed)
        self.backoff = 0

    def spurious(self, now: float) -> None:
        """Take a result that was here already: something was sent again too early; counts once a round trip
        (RFC 8985, section 6.2, step 4)."""
        if now - self.disorder_since >= self.smoothed:
            self.disorder = min(self.disorder + 1, MAX_DISORDER)
            self.disorder_since = now

    @property
    def shortest(self) -> float:
        """The shortest round trip of late, in seconds: what an empty network takes; 0.0 before any."""
        return self.least.value if self.smoothed else 0.0

    @property
    def base_timeout(self) -> float:
        if self.smoothed == 0.0:
            return INITIAL_RTO
        least = LOSSY_RTO if self.lossy else MIN_RTO
        return min(max(self.smoothed + max(K * self.variation, self.smoothed), least), MAX_RTO)

    @property
    def timeout(self) -> float:
        """Seconds without any result after which the oldest packet is sent again."""
        return min(self.base_timeout * 2**self.backoff, MAX_RTO)

    @property
    def patience(self) -> float:
        """Seconds after which a packet that a later one has overtaken is lost (RFC 8985, section 6.2)."""
        if self.smoothed == 0.0:
            return INITIAL_RTO
        return self.smoothed * (1 + self.disorder / 4)

    @property
    def waiting(self) -> float:
        """Share of a round trip that packets spend in queues, 0 to below 1 (TCP Vegas; standing: Copa)."""
        standing = self.standing.value
        return 1 - self.least.value / standing if 0 < standing < math.inf else 0.0


@dataclass
class Window:
    """Packets in flight: slow start until a queue fills, then one more each round trip; less when it loses.

    It starts from this rank's share of what any switch takes and never falls below that, as losses there are
    the link's and not a queue's: fewer packets would not be fewer losses. For the same reason a loss counts
    only if a good part of that share was waiting in queues, which shows in the round trip (as in TCP Vegas
    and Copa), or if much is lost at once. After one that counts, the window holds for a while
    where there was no loss (as BBRv3 does), since each loss on the way to the switch makes all ranks send
    again.
    """

    limit: int  # the job's slots
    world_size: int
    size: float = 0.0
    threshold: float = math.inf  # slow start ends here
    recovery_ends: float = 0.0
    hold_ends: float = 0.0
    lost: int = 0  # in the round trip that ends at round_ends
    round_ends: float = 0.0

    def __post_init__(self) -> None:
        self.size = self.least

    @property
    def least(self) -> int:
        """Packets that this rank may always have in flight: its share of what any switch takes."""
        return min(max(SAFE_IN_FLIGHT // self.world_size, MIN_WINDOW), self.limit)

    @property
    def packets(self) -> int:
        return int(self.size)

    def recovering(self, now: float) -> bool:
        """Whether losses still belong to the one that last shrank the window."""
        return now < self.recovery_ends

    def _fills_queue(self, waiting: float) -> bool:
        return self.size * waiting >= self.least / 2

    def grow(self, results: int, now: float, waiting: float) -> None:
        """Take the arrival of `results` new results; `waiting` as in `RoundTrip`."""
        if self.size < self.threshold:
            if self._fills_queue(waiting):
                self.threshold = self.size
            self.size += results
        elif now >= self.hold_ends:
            self.size += results / self.size
        self.size = min(self.size, self.limit)

    def shrink(self, lost: int, now: float, round_trip: float, waiting: float) -> bool:
        """Take `lost` losses, if they are a queue's; the window shrinks at most once a round trip, as losses
        come in bursts."""
        if now >= self.round_ends:
            self.round_ends = now + round_trip
            self.lost = 0
        self.lost += lost
        if self.recovering(now) or not (self._fills_queue(waiting) or self.lost > self.size * MUCH):
            return False
        self.size = max(self.size * SHRINK, self.least)
        self.threshold = self.size
        self.recovery_ends = now + round_trip
        self.hold_ends = now + HOLD
        return True
