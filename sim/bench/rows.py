"""What a benchmark finds: rows, each a figure beside its reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Sample:
    """One repetition: ``amount`` (in the unit of the row) done in ``seconds``."""

    amount: float
    seconds: float

    @property
    def rate(self) -> float:
        return self.amount / self.seconds


@dataclass(frozen=True)
class Missing:
    """Stands for the samples of what could not run here; ``reason`` is one clause that says why."""

    reason: str


Samples = Sequence[Sample] | Missing


@dataclass(frozen=True)
class Target:
    """What a ratio should come to: at least ``ratio``, or at most."""

    ratio: float
    at_most: bool = False

    def met_by(self, ratio: float) -> bool:
        return ratio <= self.ratio if self.at_most else ratio >= self.ratio

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.ratio:g}"


@dataclass(frozen=True)
class Row:
    """One line of the result; ``ratio`` is ``value / reference``.

    ``value`` and ``reference`` are medians in ``unit``; ``seconds`` and ``reference_seconds`` are the medians
    of what one repetition took, None for rows that count instead of timing. ``ratio`` is the median over
    repetitions of the ratio of neighbours in time, ``spread`` its quartiles. Where something is missing,
    ``missing`` says what, and ``ratio`` and ``met`` are None; ``met`` is None too without a ``target``.
    ``note`` says exactly what is compared. ``details`` are further figures, shown as columns of their own.
    """

    part: str
    name: str
    unit: str
    value: float | None
    against: str
    reference: float | None
    ratio: float | None
    spread: tuple[float, float] | None = None
    target: Target | None = None
    seconds: float | None = None
    reference_seconds: float | None = None
    repetitions: int = 1
    note: str = ""
    missing: str = ""
    details: Mapping[str, float] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        if self.target is None or self.ratio is None:
            return None
        return self.target.met_by(self.ratio)


def timed_row(
    part: str,
    name: str,
    unit: str,
    value: Samples,
    against: str,
    reference: Samples,
    target: Target | None = None,
    *,
    scale: float = 1.0,
    note: str = "",
    details: Mapping[str, float] | None = None,
) -> Row:
    """The row for samples taken in turns, the k-th of both next to each other in time.

    The figures are rates (amount a second), times ``scale`` to have them in ``unit``.
    """
    ratio = spread = None
    reasons = [each.reason for each in (value, reference) if isinstance(each, Missing)]
    if not isinstance(value, Missing) and not isinstance(reference, Missing):
        pairs = [ours.rate / theirs.rate for ours, theirs in zip(value, reference, strict=True)]
        low, ratio, high = (float(q) for q in np.quantile(pairs, (0.25, 0.5, 0.75)))
        spread = (low, high)
    present = value if not isinstance(value, Missing) else reference
    return Row(
        part=part, name=name, unit=unit, against=against, target=target, note=note,
        missing="; ".join(dict.fromkeys(reasons)),
        value=_median_rate(value, scale), reference=_median_rate(reference, scale),
        seconds=_median_seconds(value), reference_seconds=_median_seconds(reference),
        ratio=ratio, spread=spread, details=details or {},
        repetitions=0 if isinstance(present, Missing) else len(present),
    )  # fmt: skip


def counted_row(
    part: str,
    name: str,
    unit: str,
    value: float,
    against: str,
    reference: float,
    target: Target | None = None,
    *,
    note: str = "",
    details: Mapping[str, float] | None = None,
) -> Row:
    """The row for figures that are counted and so have no spread."""
    return Row(
        part=part, name=name, unit=unit, value=value, against=against, reference=reference,
        ratio=value / reference, target=target, note=note, details=details or {},
    )  # fmt: skip


def _median_rate(samples: Samples, scale: float) -> float | None:
    if isinstance(samples, Missing):
        return None
    return float(np.median([sample.rate for sample in samples])) * scale


def _median_seconds(samples: Samples) -> float | None:
    if isinstance(samples, Missing):
        return None
    return float(np.median([sample.seconds for sample in samples]))
