"""Rows as a picture: a bar a ratio, its quartiles and what was expected."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from switchreduce.errors import UsageError
from switchreduce.sim.bench.rows import Row

MET, MISSED, NEUTRAL = "#2a7f62", "#c0392b", "#5b7aa5"
BAR_INCHES = 0.3


def require_matplotlib() -> None:
    """Raises UsageError where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError(
            "--svg needs matplotlib: pip install 'switchreduce[bench]' (here: pip install -e '.[bench]')"
        ) from None


def draw(path: Path, rows: Sequence[Row]) -> None:
    """Write an SVG with one panel a part; rows without a ratio are left out. Raises UsageError."""
    require_matplotlib()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    shown = [row for row in rows if row.ratio is not None]
    if not shown:
        raise UsageError("--svg: no row has a ratio, so there is nothing to draw")
    parts = [(part, list(group)) for part, group in groupby(shown, lambda row: row.part)]
    heights = [len(group) + 2 for _, group in parts]
    figure = Figure(figsize=(9, BAR_INCHES * sum(heights)), layout="constrained")
    panels = figure.subplots(len(parts), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
    for panel, (part, group) in zip(panels[:, 0], parts, strict=True):
        _draw_part(panel, part, group)
    try:
        # text as text: a tenth of the size
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "switchreduce"}):
            figure.savefig(path, format="svg", metadata={"Date": None})
    except OSError as error:
        raise UsageError(f"--svg {path}: {error.strerror}") from error


def _draw_part(panel: object, part: str, rows: Sequence[Row]) -> None:
    from matplotlib.axes import Axes
    from matplotlib.ticker import LogFormatter

    assert isinstance(panel, Axes)
    places = range(len(rows))
    ratios = [row.ratio or 0.0 for row in rows]
    spreads = [row.spread or (ratio, ratio) for row, ratio in zip(rows, ratios, strict=True)]
    errors = [
        [max(0.0, ratio - low) for ratio, (low, _) in zip(ratios, spreads, strict=True)],
        [max(0.0, high - ratio) for ratio, (_, high) in zip(ratios, spreads, strict=True)],
    ]
    colours = [{True: MET, False: MISSED, None: NEUTRAL}[row.met] for row in rows]
    panel.barh(places, ratios, 0.6, xerr=errors, color=colours, ecolor="black", capsize=2)
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter("{x:g}")
    panel.xaxis.set_minor_formatter(LogFormatter())  # says numbers where the axis spans less than a decade
    for place, row, ratio, (_, high) in zip(places, rows, ratios, spreads, strict=True):
        # beside whatever reaches furthest: bar, upper quartile or mark
        end = max(ratio, high, row.target.ratio if row.target is not None else 0.0)
        panel.annotate(f"{ratio:.3g}", (end, place), va="center", xytext=(6, 0), textcoords="offset points")
        if row.target is not None:
            panel.plot([row.target.ratio] * 2, [place - 0.42, place + 0.42], color="black", linewidth=2)
    panel.set_yticks(places, [row.name for row in rows])
    panel.invert_yaxis()
    panel.margins(x=0.15)
    panel.set_title(f"{part}: ratio to the reference (line across quartiles, mark: expected)", loc="left")
    panel.grid(axis="x", which="major", alpha=0.3)
    panel.set_axisbelow(True)
