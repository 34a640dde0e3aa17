"""What jobs share in one switch: slots, job ids, multicast groups and endpoint ids.

A job takes all it needs at once when its first rank joins and gives all back when its last entry has
left the switch, so two jobs can never hold half of what each other needs.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Capacity:
    """How much of each resource the program on the switch has (constants.p4)."""

    slots: int
    jobs: int
    endpoints: int
    slots_least: int  # a job runs with fewer slots than it wants, but not with fewer than this


@dataclass(frozen=True)
class Lease:
    """One job's share of the switch."""

    job_id: int
    group: int
    endpoints: tuple[int, ...]  # one for each rank
    slots: range


class Exhausted(Exception):
    """Not enough is free; the message says what is free and who holds the rest."""


class IdPool:
    """The ids of a range; the lowest free one is taken first."""

    def __init__(self, ids: range) -> None:
        self._free = list(ids)
        heapq.heapify(self._free)

    def __len__(self) -> int:
        return len(self._free)

    def take(self) -> int:
        return heapq.heappop(self._free)

    def give_back(self, ids: Iterable[int]) -> None:
        for i in ids:
            heapq.heappush(self._free, i)


class SlotPool:
    """Contiguous ranges of slots, first fit."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._held: list[range] = []  # in order

    @property
    def free(self) -> int:
        return self.total - sum(len(held) for held in self._held)

    def gaps(self) -> list[range]:
        """The free ranges in order, none of them empty."""
        starts = [0] + [held.stop for held in self._held]
        stops = [held.start for held in self._held] + [self.total]
        return [range(start, stop) for start, stop in zip(starts, stops, strict=True) if start < stop]

    def take(self, wanted: int, least: int) -> range | None:
        """The first free range of `wanted` slots, else the longest if it has `least` slots, else None."""
        gaps = self.gaps()
        gap = next((gap for gap in gaps if len(gap) >= wanted), None) or max(gaps, key=len, default=range(0))
        if len(gap) < min(wanted, least):
            return None
        taken = gap[:wanted]
        self._held = sorted([*self._held, taken], key=lambda held: held.start)
        return taken

    def give_back(self, taken: range) -> None:
        self._held.remove(taken)


class Leases:
    """Hands out leases; `held` says who has which."""

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self.slots = SlotPool(capacity.slots)
        self.held: dict[Lease, str] = {}
        self._job_ids = IdPool(range(1, capacity.jobs + 1))
        self._groups = IdPool(range(1, capacity.jobs + 1))  # P4Runtime reserves group 0
        self._endpoints = IdPool(range(1, capacity.endpoints + 1))  # endpoint 0 means: not a result

    def take(self, world_size: int, slots_wanted: int, holder: str) -> Lease:
        """A lease for a job of `world_size` ranks.

        Raises:
            Exhausted: not enough is free. Nothing was taken.
        """
        if not len(self._job_ids):
            raise Exhausted(f"all {self.capacity.jobs} job ids are taken")
        if len(self._endpoints) < world_size:
            raise Exhausted(
                f"{world_size} ranks need as many endpoints and {len(self._endpoints)} of "
                f"{self.capacity.endpoints} are free"
            )
        slots = self.slots.take(slots_wanted, self.capacity.slots_least)
        if slots is None:
            least = min(self.capacity.slots_least, slots_wanted)
            holders = ", ".join(f"{name!r} holds {len(lease.slots)}" for lease, name in self.held.items())
            raise Exhausted(
                f"a job needs {least} slots in a row and {self.slots.free} of {self.slots.total} are free: "
                f"{holders}"
            )
        lease = Lease(
            job_id=self._job_ids.take(),
            group=self._groups.take(),
            endpoints=tuple(self._endpoints.take() for _ in range(world_size)),
            slots=slots,
        )
        self.held[lease] = holder
        return lease

    def give_back(self, lease: Lease) -> None:
        del self.held[lease]
        self.slots.give_back(lease.slots)
        self._job_ids.give_back([lease.job_id])
        self._groups.give_back([lease.group])
        self._endpoints.give_back(lease.endpoints)
