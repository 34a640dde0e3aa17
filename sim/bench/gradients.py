"""Sparse arrays to measure with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def sparse(size: int, density: float, seed: int) -> Array:
    """float32[size], normally distributed where it is not zero; every coordinate is so with probability
    ``density``, independently."""
    return _filled(np.random.default_rng(seed).random(size) < density, seed + 1)


def alike(ranks: int, size: int, density: float, seed: int) -> list[Array]:
    """An array a rank, all with the same support and with values of their own."""
    support = np.random.default_rng(seed).random(size) < density
    return [_filled(support, seed + 1 + rank) for rank in range(ranks)]


def independent(ranks: int, size: int, density: float, seed: int) -> list[Array]:
    """An array a rank, each with a support of its own."""
    return [sparse(size, density, seed + 2 * rank) for rank in range(ranks)]


def _filled(support: NDArray[np.bool_], seed: int) -> Array:
    values = np.random.default_rng(seed).standard_normal(support.size, dtype=np.float32)
    return np.where(support, values, np.float32(0))
