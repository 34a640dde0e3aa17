"""Whole calls against Gloo: what the ranks find, what is made of it, and that nothing stays behind."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from switchreduce.cli import main
from switchreduce.errors import SwitchReduceError, UsageError
from switchreduce.sim.bench.allreduce import fabric, part, profile, runner
from switchreduce.sim.bench.allreduce.plan import (
    GLOO,
    Case,
    Contender,
    Plan,
    Tally,
    read_tallies,
    seconds,
    write_tallies,
)
from switchreduce.sim.bench.allreduce.rank import tolerance
from switchreduce.sim.bench.rows import Target
from switchreduce.sim.mininet.library import require_mininet
from tests.sim.bench.test_parts import rows_of
from tests.waiting import eventually

NO_TORCH = importlib.util.find_spec("torch") is None
RANKS = 2


def quiet(_: str) -> None:
    pass


@pytest.mark.skipif(NO_TORCH, reason="there is no torch: pip install 'switchreduce[torch]'")
def test_every_row_is_there_and_the_sums_agree_with_gloo(tmp_path):
    rows = {row["name"]: row for row in rows_of("allreduce", tmp_path)}
    for case in ("loopback alike", "loopback independent", "loopback MovieLens"):
        for codec in ("auto", "packed", "sketch", "dense"):
            row = rows.pop(f"{case}: {codec} / Gloo")
            assert row["ratio"] is not None
            assert row["details"]["sent MB"] > 0
        best = [name for name in rows if name.startswith(f"{case}: auto / best fixed")]
        assert [rows.pop(name)["expected"] for name in best] == [0.9]
    assert rows.pop("memory of a rank")["met"] is True
    assert rows
    assert all(row["missing"] == "a quick run leaves it out" for row in rows.values())


def test_rows_without_a_reference_say_what_is_missing():
    def of(codec_seconds):
        return [Tally(begun=[0.0] * 7, ended=[codec_seconds] * 7, packets_sent=7)]

    found = {"here": {"auto": of(1.0), "packed": of(0.5), "sketch": of(2.0), "dense": of(4.0)}}
    results = part.Results(found, {GLOO: "Gloo: there is no torch"}, {"here": 1_000_000})
    subject = part.Subject("here", lambda: [], over_gloo=Target(1), over_dense=Target(2))
    rows = {row.name: row for row in part.compare([subject], results, "")}
    missed = rows["here: auto / Gloo"]
    assert (missed.value, missed.ratio, missed.met) == (1.0, None, None)
    assert missed.missing == "Gloo: there is no torch"
    assert (rows["here: auto / dense"].ratio, rows["here: auto / dense"].met) == (4, True)
    best = rows["here: auto / best fixed, packed"]
    assert (best.ratio, best.met) == (0.5, False)


def test_gloo_is_missed_where_there_is_no_torch(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "switchreduce[torch]" in runner.gloo_is_missing()


def test_no_right_to_make_namespaces_is_a_reason(monkeypatch):
    def refuse():
        raise UsageError("network namespaces need root: use sudo")

    monkeypatch.setattr(part, "require_mininet", refuse)
    assert part.mininet_is_missing() == "shaped links: network namespaces need root: use sudo"


def test_a_call_lasts_from_the_first_begin_to_the_last_end():
    tallies = [Tally(begun=[1.0, 5.0], ended=[2.0, 7.0]), Tally(begun=[1.5, 4.0], ended=[3.0, 6.0])]
    assert seconds(tallies) == [2.0, 3.0]


def test_plans_and_tallies_survive_their_way_between_processes(tmp_path):
    case = Case("one", "/there", (Contender("auto", 2), Contender(GLOO, 2)))
    plan = Plan("127.0.0.1:1", 2, "", (case,), 3, 7)
    plan.write(tmp_path / "plan.json")
    assert Plan.read(tmp_path / "plan.json") == plan
    tallies = {"one": {"auto 2": Tally([1.0], [2.0], "packed", 0.5, 3, 10, 1, 0, "ab")}}
    assert read_tallies(write_tallies(tallies)) == tallies


def test_a_tolerance_covers_what_float32_sums_differ_by():
    rng = np.random.default_rng(1)
    for ranks in (2, 4, 16):
        arrays = rng.standard_normal((ranks, 10_000)).astype(np.float32)
        in_order = np.add.reduce(arrays)
        exact = arrays.astype(np.float64).sum(axis=0).astype(np.float32)
        allowed = tolerance(float(np.abs(arrays).max()), ranks)
        assert np.abs(in_order - exact).max() <= allowed
        assert allowed < 1e-3  # so that a wrong sum shows


# -- failures ---------------------------------------------------------------------------------------


@pytest.fixture
def two_ranks():
    with fabric.loopback(RANKS, part.SCALING_BUILD) as running:
        yield running


def case_of(folder: Path, sizes: tuple[int, ...]) -> Case:
    arrays = [np.ones(size, np.float32) for size in sizes]
    return runner.save_case("some", arrays, [Contender("packed", RANKS)], folder)


def test_the_error_is_that_of_the_rank_that_failed(two_ranks, tmp_path):
    with pytest.raises(SwitchReduceError, match=r"rank [01] failed: error: the ranks make different calls"):
        runner.run_cases(two_ranks, [case_of(tmp_path, (1000, 1001))], 7, quiet)


def test_a_rank_that_dies_ends_the_others_and_the_run(two_ranks, tmp_path):
    case = case_of(tmp_path, (1000, 1000))
    (Path(case.folder) / "in1.npy").unlink()
    with pytest.raises(SwitchReduceError, match=r"rank 1 failed: FileNotFoundError"):
        runner.run_cases(two_ranks, [case], 7, quiet)


def test_ctrl_c_leaves_nothing_running(tmp_path):
    command = [sys.executable, "-m", "switchreduce.cli"]
    command += ["bench", "allreduce", "--quick", "--repetitions", "5000"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(tmp_path)}
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "loopback alike: 1 of" in line:
                break
        started = descendants(process.pid)
        assert len(started) >= 2 + RANKS  # switch, controller and ranks
        process.send_signal(signal.SIGINT)
        process.stderr.read()
        assert process.wait(60) == 128 + signal.SIGINT
    eventually(lambda: not any(map(is_running, started)))
    assert list(tmp_path.iterdir()) == []


def descendants(pid: int) -> list[int]:
    """Processes that ``pid`` started, and those that these started."""
    children = [int(each) for task in Path(f"/proc/{pid}/task").iterdir()
                for each in (task / "children").read_text().split()]  # fmt: skip
    return children + [each for child in children for each in descendants(child)]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# -- shaped links -----------------------------------------------------------------------------------


def test_shaped_links_carry_both_contenders_at_their_rate(tmp_path):
    try:
        require_mininet()
    except UsageError as error:
        pytest.skip(str(error))
    megabits, size = 20.0, 40_000
    contenders = [Contender("dense", RANKS), *([] if NO_TORCH else [Contender(GLOO, RANKS)])]
    arrays = [np.random.default_rng(rank).standard_normal(size, np.float32) for rank in range(RANKS)]
    with fabric.namespaces(RANKS, part.SCALING_BUILD, megabits) as running:
        case = runner.save_case("some", arrays, contenders, tmp_path)
        found = runner.run_cases(running, [case], 1, quiet)["some"]
    least = size * 4 * 8 / (megabits * 1e6)  # what two ranks send in dense form or round Gloo's ring
    for each in contenders:
        [took] = seconds(found[each.name])
        assert took > 0.6 * least, each.name  # a token bucket lets its first 15 kB go at once


# -- profile ----------------------------------------------------------------------------------------


def test_samples_count_for_the_innermost_stage_and_not_while_waiting(tmp_path):
    waits, works = tmp_path / "loop.py", tmp_path / "udp.py"
    waits.write_text("x = poller.poll(1)\n")
    works.write_text("x = 1\n")
    outer = "main (rank.py:1);Rank._measure (rank.py:2)"
    stacks = "\n".join(
        [
            f"{outer};Communicator._drive (c.py:1);drive ({waits}:1) 50",
            f"{outer};drive ({works}:1) 3",
            f"{outer};drive ({works}:1);UdpLink.send ({works}:1) 5",
            f"{outer};Stream.write_back (a/stream.py:1);write (a/results.py:1);kernel (a/kernels.py:1) 7",
            f"main (rank.py:1);Rank._meet (rank.py:2);drive ({works}:1) 11",
        ]
    )
    counts = profile.stage_counts(stacks, profile.RANK_STAGES, profile.CALL)
    assert counts == {"socket send": 5, "decode, write": 7, profile.REST: 3}


@pytest.mark.parametrize("table", [profile.RANK_STAGES, profile.SWITCH_STAGES])
def test_every_stage_is_named_after_a_function_that_exists(table):
    """So that a renamed function does not silently become the rest."""
    texts = [(path.stem, path.read_text()) for room in ("worker", "sim") for path in Path(room).rglob("*.py")]
    for name in table:
        module, _, function = name.partition(".")
        assert any(f"def {function}(" in text for stem, text in texts if stem == module), name


def test_a_picture_has_a_bar_a_process(tmp_path):
    pytest.importorskip("matplotlib")
    bars = [
        profile.Bar("loopback alike", "rank 0", {"quantise": 5.0, profile.WAITING: 7.0}),
        profile.Bar("loopback alike", "switch", {"P4 program": 2.0, profile.WAITING: 10.0}),
    ]
    profile.draw(tmp_path / "profile.svg", bars)
    text = (tmp_path / "profile.svg").read_text()
    for word in ("rank 0", "switch", "quantise", "P4 program", "waiting"):
        assert word in text
    assert "quantise 5.0" in profile.format_bars(bars)


def test_profile_is_refused_where_it_can_come_to_nothing(monkeypatch, tmp_path, capsys):
    assert main(["bench", "wire", "--profile", str(tmp_path / "x.svg")]) == 1
    assert "--profile is for the part allreduce" in capsys.readouterr().err
    monkeypatch.setattr(profile, "find_spy", lambda: (_ for _ in ()).throw(UsageError("needs py-spy")))
    assert main(["bench", "allreduce", "--profile", str(tmp_path / "x.svg")]) == 1
    assert "needs py-spy" in capsys.readouterr().err
