"""The committed build is what the sources say, and Python's view of the packet follows it."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from switchreduce.errors import UsageError
from switchreduce.p4 import build as p4build
from switchreduce.p4.builds import build_with_lanes, constants, load_build, manifest
from switchreduce.p4.packet import datagram_bytes, datagram_dtype, envelope_bytes, header_dtype


def test_sources_and_committed_build_agree():
    assert p4build.stale() == []


@pytest.mark.parametrize("name", ["slots.p4", "constants.p4"])
def test_a_changed_source_is_noticed(tmp_path, monkeypatch, name):
    room = tmp_path / "p4"
    shutil.copytree(p4build.ROOM, room, ignore=shutil.ignore_patterns("__pycache__"))
    with (room / name).open("a") as source:
        source.write("// changed\n")
    changed = p4build.source_digests(room)
    monkeypatch.setattr(p4build, "source_digests", lambda: changed)
    assert p4build.stale() == [name]


def test_a_changed_output_is_noticed(tmp_path):
    folder = tmp_path / "build"
    shutil.copytree(p4build.BUILD, folder)
    with (folder / "wide256.json").open("a") as output:
        output.write(" ")
    assert p4build.stale(folder) == ["wide256.json"]


@pytest.mark.skipif(shutil.which("p4c-bm2-ss") is None, reason="p4c-bm2-ss is not on PATH")
def test_compiling_again_gives_the_committed_build(tmp_path):
    p4build.build(tmp_path / "build")
    for variant in p4build.VARIANTS:
        for name in (f"{variant.name}.json", f"{variant.name}.p4info.txtpb"):
            assert (tmp_path / "build" / name).read_bytes() == (p4build.BUILD / name).read_bytes()


def test_the_build_names_no_machine():
    for path in p4build.BUILD.iterdir():
        text = path.read_text()
        assert "source_info" not in text
        assert str(p4build.ROOM) not in text


def test_constants_come_from_the_source():
    assert constants.AGGREGATION_PORT == 21330
    assert manifest()["constants"]["DROP_REASONS"] == 15
    reasons = [v for k, v in manifest()["constants"].items() if k.startswith("DROP_") and k != "DROP_REASONS"]
    assert sorted(reasons) == list(range(constants.DROP_REASONS))


def test_the_datagram_is_the_slot_header_and_then_the_lanes(any_build):
    datagram = datagram_dtype(any_build)
    assert header_dtype(any_build, "slot").itemsize == 24
    assert datagram.itemsize == datagram_bytes(any_build) == 24 + 4 * any_build.lanes
    assert envelope_bytes(any_build) == 42
    packet = np.zeros(1, datagram)
    packet["magic"] = constants.MAGIC
    packet["chunk"] = 0x01020304
    packet["lanes"][0, :2] = (1, 0x0A0B0C0D)
    raw = packet.tobytes()
    assert raw[:2] == b"SR"
    assert raw[12:16] == b"\x01\x02\x03\x04"
    assert raw[24:32] == b"\x00\x00\x00\x01\x0a\x0b\x0c\x0d"


def test_lane_counts_name_a_build():
    assert build_with_lanes(256).name == "wide256"
    assert build_with_lanes(2048).name == "jumbo2048"
    with pytest.raises(UsageError, match="no build with 17 lanes"):
        build_with_lanes(17)
    with pytest.raises(UsageError, match="wide256, narrow256, jumbo2048"):
        load_build("wide512")


def test_read_constants():
    source = (
        "const bit<16> A = 0x10; // a\nconst int B = 3;\nconst bit<8> C = A + 1;\n  const bit<8> D = 4;\n"
    )
    assert p4build.read_constants(source) == {"A": 16, "B": 3}
    assert (
        json.dumps(p4build.stripped({"a": [{"source_info": 1, "b": 2}], "program": 3})) == '{"a": [{"b": 2}]}'
    )
