"""Loss, duplication and reordering on purpose, for experiments. Never use it to carry real work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Rates:
    """Probabilities, each in 0..1, that a packet is dropped, sent twice, or swapped with the next one."""

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0

    @property
    def any(self) -> bool:
        return bool(self.loss or self.duplicate or self.reorder)


class Direction:
    """The impairments of one direction. Each kind draws from a generator of its own, one number a packet, so
    that which packets are lost does not depend on how they fall into batches."""

    def __init__(self, rates: Rates, seed: np.random.SeedSequence) -> None:
        self._rates = rates
        self._loss, self._duplicate, self._reorder = (np.random.default_rng(s) for s in seed.spawn(3))
        self.lost = 0
        self.duplicated = 0
        self.reordered = 0

    def plan(self, count: int) -> NDArray[np.int64]:
        """Which of a batch's ``count`` packets go on, in order: indices into the batch, int64[n].

        Reordering only happens inside a batch: nothing is held back for a packet that may never come.
        """
        order = np.arange(count, dtype=np.int64)
        lost = self._loss.random(count) < self._rates.loss
        twice = self._duplicate.random(count) < self._rates.duplicate
        swap = self._reorder.random(count) < self._rates.reorder
        twice &= ~lost
        for first in np.flatnonzero(swap[:-1]):
            order[first], order[first + 1] = order[first + 1], order[first]
        copies = np.where(lost, 0, np.where(twice, 2, 1))
        self.lost += int(lost.sum())
        self.duplicated += int(twice.sum())
        self.reordered += int(swap[:-1].sum())
        return np.repeat(order, copies[order])


class Impairment:
    """Independent impairments of the packets that enter and that leave, reproducible from ``seed``."""

    def __init__(self, rates: Rates, seed: int = 0) -> None:
        inward, outward = np.random.SeedSequence(seed).spawn(2)
        self.inward = Direction(rates, inward)
        self.outward = Direction(rates, outward)
