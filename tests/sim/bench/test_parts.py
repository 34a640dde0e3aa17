"""Each part of the benchmark on its smallest sizes: what it returns, never how fast that was."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from switchreduce.cli import main
from switchreduce.sim.bench.cli import PARTS
from switchreduce.sim.bench.switch import bmv2_is_missing

LEAST = "7"


def rows_of(part: str, folder: Path) -> list[dict]:
    """The rows of a quick run, from its JSON."""
    path = folder / "rows.json"
    assert main(["bench", part, "--quick", "--repetitions", LEAST, "--json", str(path)]) == 0
    report = json.loads(path.read_text())
    assert report["machine"]["cores"] >= 1
    assert report["versions"]["numpy"]
    assert report["rows"]
    for row in report["rows"]:
        assert row["part"] == part
        check_row(row)
    return report["rows"]


def check_row(row: dict) -> None:
    if row["missing"]:
        assert row["ratio"] is None
        assert row["met"] is None
        return
    assert row["value"] > 0
    assert row["reference"] > 0
    assert math.isfinite(row["ratio"])
    if row["spread"] is not None:
        low, high = row["spread"]
        assert low <= row["ratio"] <= high
        assert row["repetitions"] == int(LEAST)
    if row["expected"] is not None:
        good = row["ratio"] <= row["expected"] if row["at_most"] else row["ratio"] >= row["expected"]
        assert row["met"] == good


def test_codec(tmp_path):
    names = {row["name"] for row in rows_of("codec", tmp_path)}
    assert {"scan", "quantise", "union"} < names
    for form in ("packed", "sketch"):
        assert {f"encode {form}", f"plan {form}", f"decode {form}"} < names


def test_wire(tmp_path, capsys):
    rows = rows_of("wire", tmp_path)
    assert {row["name"].partition(",")[0] for row in rows} == {"alike 1%", "independent 1%", "MovieLens"}
    for row in rows:
        details = row["details"]
        assert details["headers"] > 0
        assert row["value"] > details["values"]
        if not row["name"].startswith("MovieLens"):  # coordinates in clusters are fewer bits than by chance
            assert details["values"] + details["least index"] > row["reference"]
            assert row["ratio"] > 1
    assert "H(U)" in capsys.readouterr().out


def test_switch(tmp_path):
    rows = {row["name"]: row for row in rows_of("switch", tmp_path)}
    for name in ("UDP wide256 / echo", "in process wide256 / add"):
        assert rows[name]["ratio"] is not None
    absent = bmv2_is_missing()
    for name in ("UDP wide256 / BMv2", "in process wide256 / BMv2"):
        assert rows[name]["missing"] == absent


@pytest.mark.parametrize("part", PARTS)
def test_every_part_says_what_it_is_for(part, capsys):
    with pytest.raises(SystemExit) as exit:
        main(["bench", "--help"])
    assert exit.value.code == 0
    assert part in capsys.readouterr().out
