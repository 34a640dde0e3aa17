"""How long to wait for a result and how many packets to keep in flight.

Both are functions of measured round trips and losses only; time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass

# RFC 6298 names and gains.
ALPHA = 1 / 8
BETA = 1 / 4
K = 4

INITIAL_RTO = 0.05  # s, before any measurement
MIN_RTO = 0.02  # s: below it a busy host's scheduling, or a slow switch's queue, looks like loss
MIN_REORDERING = 0.001  # s
MAX_RTO = 0.5  # s: a straggling rank's first packet finds the others still asking this often

SAFE_IN_FLIGHT = 32  # packets from all ranks together: what BMv2 takes in one burst without losing any
MIN_WINDOW = 4  # packets of one rank
SHRINK = 0.7  # RFC 9438 (CUBIC), section 4.6


@dataclass
class RoundTrip:
    """Smoothed round-trip time and the retransmission timeout (RFC 6298)."""

    smoothed: float = 0.0
    variation: float = 0.0
    backoff: int = 0

    def observe(self, sample: float) -> None:
        """Take a round trip in seconds of a packet that was sent once (Karn's rule).

        A result also waits for the slowest rank, which says nothing about the network, so one sample may
        move the estimate by no more than the present timeout.
        """
        sample = min(sample, self.base_timeout)
        if self.smoothed == 0.0:
            self.smoothed = sample
            self.variation = sample / 2
        else:
            self.variation += BETA * (abs(self.smoothed - sample) - self.variation)
            self.smoothed += ALPHA * (sample - self.smoothed)
        self.backoff = 0

    @property
    def base_timeout(self) -> float:
        if self.smoothed == 0.0:
            return INITIAL_RTO
        return min(max(self.smoothed + K * self.variation, MIN_RTO), MAX_RTO)

    @property
    def timeout(self) -> float:
        """Seconds without any result after which the oldest packet is sent again."""
        return min(self.base_timeout * 2**self.backoff, MAX_RTO)

    @property
    def reorder_window(self) -> float:
        """Seconds by which a packet may lag behind a later one and not be lost (RFC 8985, section 6.2)."""
        return max(self.smoothed / 2, MIN_REORDERING)


@dataclass
class Window:
    """Packets in flight: slow start, then additive increase and multiplicative decrease (RFC 5681).

    It starts from this rank's share of what any switch takes and never falls below that, as losses there are
    the link's and not a queue's: fewer packets would not be fewer losses.
    """

    limit: int  # the job's slots
    world_size: int
    size: float = 0.0
    threshold: float = float("inf")
    recovery_ends: float = 0.0

    def __post_init__(self) -> None:
        self.size = self.least

    @property
    def least(self) -> int:
        """Packets that this rank may always have in flight: its share of what any switch takes."""
        return min(max(SAFE_IN_FLIGHT // self.world_size, MIN_WINDOW), self.limit)

    @property
    def packets(self) -> int:
        return int(self.size)

    def grow(self, results: int) -> None:
        """Take the arrival of `results` new results."""
        if self.size < self.threshold:
            self.size += results
        else:
            self.size += results / self.size
        self.size = min(self.size, self.limit)

    def shrink(self, now: float, round_trip: float) -> bool:
        """Take a loss; at most one a round trip counts, as losses come in bursts."""
        if now < self.recovery_ends:
            return False
        self.threshold = max(self.size * SHRINK, self.least)
        self.size = self.threshold
        self.recovery_ends = now + round_trip
        return True
