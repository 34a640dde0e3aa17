"""Rows from samples, and what is made of them: table, JSON, picture, exit status."""

from __future__ import annotations

import json
import sys
import types
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchreduce.cli import main
from switchreduce.sim.bench import cli, report
from switchreduce.sim.bench.measure import in_turns
from switchreduce.sim.bench.rows import Missing, Row, Sample, Target, counted_row, timed_row
from switchreduce.sim.bench.table import format_table

rates = st.floats(1e-3, 1e9)


def row(ratio: float, target: Target | None = None, name: str = "some") -> Row:
    return timed_row("part", name, "MB/s", [Sample(ratio, 1)] * 7, "one", [Sample(1, 1)] * 7, target)


def missing_row() -> Row:
    return timed_row("part", "absent", "MB/s", [Sample(1, 2)] * 7, "BMv2", Missing("no BMv2 here"), Target(2))


@given(st.lists(st.tuples(rates, rates), min_size=7, max_size=12), st.floats(0.01, 100))
def test_the_ratio_is_the_median_of_neighbours(pairs, scale):
    ours = [Sample(10 * rate, 10) for rate, _ in pairs]
    theirs = [Sample(rate, 1) for _, rate in pairs]
    found = timed_row("part", "x", "u", ours, "y", theirs, scale=scale)
    ratios = sorted(a.rate / b.rate for a, b in zip(ours, theirs, strict=True))
    middle = (ratios[(len(ratios) - 1) // 2] + ratios[len(ratios) // 2]) / 2
    assert found.ratio == pytest.approx(middle)
    assert found.spread is not None
    assert ratios[0] <= found.spread[0] * (1 + 1e-12)
    assert found.spread[0] <= found.ratio <= found.spread[1]
    assert found.seconds == 10
    assert found.reference_seconds == 1
    assert found.repetitions == len(pairs)
    one_factor = timed_row("part", "x", "u", ours, "y", theirs)
    assert found.value == pytest.approx(one_factor.value * scale)


@pytest.mark.parametrize(
    ("ratio", "target", "met"),
    [(2, None, None), (2, Target(2), True), (1.9, Target(2), False), (1.9, Target(2, at_most=True), True),
     (2.1, Target(2, at_most=True), False)],
)  # fmt: skip
def test_a_target_is_met_on_its_side(ratio, target, met):
    assert row(ratio, target).met is met
    counted = counted_row("part", "n", "bits", 3 * ratio, "bound", 3, target)
    assert counted.ratio == pytest.approx(ratio)


def test_a_missing_reference_keeps_the_value_and_says_why():
    found = missing_row()
    assert (found.value, found.reference, found.ratio, found.met) == (0.5, None, None, None)
    facts = report.row_facts(found)
    assert facts["ratio"] is None
    assert facts["missing"] == "no BMv2 here"
    assert "absent: MISSING: no BMv2 here" in format_table([found, row(1)])


def test_contenders_take_turns_and_the_first_round_does_not_count():
    calls = []

    def contender(name):
        def once():
            calls.append(name)
            return Sample(len(calls), 1)

        return once

    samples = in_turns({"a": contender("a"), "b": contender("b")}, 3)
    assert calls == ["a", "b"] * 4
    assert [sample.amount for sample in samples["a"]] == [3, 5, 7]


def test_the_table_has_a_line_a_row_and_a_block_a_part():
    rows = [row(0.5, Target(1), "slow"), row(2, Target(1), "fast"), counted_row("other", "n", "b", 1, "m", 2)]
    text = format_table(rows)
    slow, fast = (next(line for line in text.splitlines() if line.startswith(n)) for n in ("slow", "fast"))
    assert " NO " in slow
    assert " yes " in fast
    assert text.count("against one") == 1  # said once, as both rows have the same reference
    assert text.count("\n\n") == 1


@pytest.fixture
def part_of(monkeypatch):
    """Makes `switchreduce bench codec` return given rows."""

    def give(*rows):
        module = types.ModuleType("given_part")
        module.run = lambda settings: list(rows)
        monkeypatch.setitem(sys.modules, "given_part", module)
        monkeypatch.setitem(cli.PARTS, "codec", ("given_part", "rows of a test"))

    return give


def test_only_strict_makes_a_missed_target_the_exit_status(part_of, capsys):
    part_of(row(0.5, Target(1)))
    assert main(["bench", "codec"]) == 0
    assert main(["bench", "codec", "--strict"]) == 1
    part_of(missing_row())
    assert main(["bench", "codec", "--strict"]) == 1
    part_of(row(2, Target(1)), row(2))
    assert main(["bench", "codec", "--strict"]) == 0


def test_json_has_the_fields_that_others_read(part_of, tmp_path):
    part_of(row(0.5, Target(1)))
    path = tmp_path / "out.json"
    assert main(["bench", "codec", "--json", str(path)]) == 0
    written = json.loads(path.read_text())
    [found] = written["rows"]
    for name in ("name", "value", "reference", "ratio", "expected", "met"):
        assert name in found
    assert found["expected"] == 1
    assert found["met"] is False
    assert set(written) == {"date", "command", "machine", "versions", "rows"}


def test_the_picture_has_every_row_that_has_a_ratio(part_of, tmp_path):
    pytest.importorskip("matplotlib")
    part_of(row(0.5, Target(1), "slow"), row(2, Target(1), "fast"), missing_row())
    path = tmp_path / "out.svg"
    assert main(["bench", "codec", "--svg", str(path)]) == 0
    comments = path.read_text()
    assert ElementTree.parse(path).getroot().tag.endswith("svg")
    assert "slow" in comments
    assert "fast" in comments
    assert "absent" not in comments


def test_a_missing_matplotlib_is_one_line_before_anything_is_measured(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["bench", "codec", "--svg", str(tmp_path / "out.svg")]) == 1
    [line] = capsys.readouterr().err.strip().splitlines()
    assert "switchreduce[bench]" in line


def test_mistakes_are_one_line(part_of, tmp_path, capsys):
    part_of(row(2))
    for arguments in (["--repetitions", "3"], ["--json", str(tmp_path / "no" / "such.json")]):
        assert main(["bench", "codec", *arguments]) == 1
        error = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
        assert len(error) == 1
