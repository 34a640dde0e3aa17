"""Rows as text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from switchreduce.sim.bench.rows import Row

HEADINGS = ("", "value", "reference", "unit", "ratio", "quartiles", "expected", "met", "time", "its time")
LEFT_ALIGNED = ("", "unit")


def format_table(rows: Sequence[Row]) -> str:
    """A table a part, with what its rows compare underneath."""
    return "\n\n".join(_format_part(part, list(group)) for part, group in groupby(rows, lambda r: r.part))


def _format_part(part: str, rows: Sequence[Row]) -> str:
    extra = list(dict.fromkeys(key for row in rows for key in row.details))
    lines = [[*HEADINGS, *extra]]
    for row in rows:
        lines.append([*_cells(row), *(_number(row.details.get(key)) for key in extra)])
    columns = [_aligned(column) for column in zip(*lines, strict=True) if any(column[1:])]
    table = ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]
    title = f"{part} (ratio = value / reference; times are of one repetition, the reference's second)"
    return "\n".join([title, *table, *_notes(rows)])


def _aligned(column: Sequence[str]) -> list[str]:
    width = max(map(len, column))
    return [cell.ljust(width) if column[0] in LEFT_ALIGNED else cell.rjust(width) for cell in column]


def _cells(row: Row) -> list[str]:
    spread = "" if row.spread is None else " .. ".join(_number(edge) for edge in row.spread)
    return [
        row.name, _number(row.value), _number(row.reference), row.unit, _number(row.ratio), spread,
        "" if row.target is None else str(row.target), {True: "yes", False: "NO", None: ""}[row.met],
        _time(row.seconds), _time(row.reference_seconds),
    ]  # fmt: skip


def _notes(rows: Sequence[Row]) -> list[str]:
    """What is compared and what is missing, once for all rows of which it is true."""
    names: dict[str, list[str]] = {}
    for row in rows:
        text = f"against {row.against}" + (f"; {row.note}" if row.note else "")
        names.setdefault(text, []).append(row.name)
    for row in rows:
        if row.missing:
            names.setdefault(f"MISSING: {row.missing}", []).append(row.name)
    return [
        f"  {'all' if len(same) == len(rows) else ', '.join(same)}: {text}" for text, same in names.items()
    ]


def _number(value: float | None) -> str:
    """Four digits, or all of a larger integer part."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
