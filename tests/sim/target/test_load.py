"""What the loader refuses, by name, and what it makes of files that are no programs."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from switchreduce.errors import UnsupportedProgramError
from switchreduce.sim.target import load_program
from switchreduce.sim.target.codegen import generate

PROGRAM = json.loads((Path(__file__).parent / "programs" / "traffic.json").read_text())
Change = Callable[[dict[str, Any]], None]


def changed(change: Change) -> bytes:
    j = copy.deepcopy(PROGRAM)
    change(j)
    return json.dumps(j).encode()


def add(section: str, **item: Any) -> Change:
    return lambda j: j[section].append(item)


def primitive(op: str, *parameters: Any) -> Change:
    return lambda j: j["actions"][0]["primitives"].append({"op": op, "parameters": list(parameters)})


def expression(op: str) -> Change:
    value = {"op": op, "left": {"type": "hexstr", "value": "1"}, "right": {"type": "hexstr", "value": "1"}}
    return primitive(
        "assign",
        {"type": "field", "value": ["standard_metadata", "priority"]},
        {"type": "expression", "value": {"type": "expression", "value": value}},
    )


def first_table(**settings: Any) -> Change:
    return lambda j: j["pipelines"][0]["tables"][0].update(settings)


def first_state(**settings: Any) -> Change:
    return lambda j: j["parsers"][0]["parse_states"][0].update(settings)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (add("meter_arrays", name="I.police"), "I.police"),
        (add("header_unions", name="u"), "header unions"),
        (add("parse_vsets", name="vset"), "parse vsets"),
        (add("extern_instances", name="ext"), "extern instances"),
        (primitive("generate_digest"), "generate_digest"),
        (primitive("assert"), "assert"),
        (primitive("execute_meter"), "execute_meter"),
        (primitive("_jump", {"type": "hexstr", "value": "0"}), "jump"),
        (expression("valid_union"), "valid_union"),
        (expression("@"), "operation '@'"),
        (first_table(type="indirect"), "action profiles"),
        (first_table(support_timeout=True), "idle time-outs"),
        (first_table(direct_meters="m"), "meters"),
        (first_table(key=[{"match_type": "selector", "target": ["order", "op"]}]), "selector"),
        (first_state(parser_ops=[{"op": "magic", "parameters": []}]), "magic"),
        (
            first_state(transitions=[{"type": "parse_vset", "value": "v", "mask": None, "next_state": None}]),
            "parse_vset",
        ),
        (lambda j: j["__meta__"].update(version=[3, 0]), "3.0"),
        (lambda j: j["header_types"][0]["fields"].append(["huge", 4096, False]), "4096 bits"),
        (lambda j: j["calculations"].append({"name": "c", "id": 0, "algo": "md5", "input": []}), ""),
    ],
)
def test_a_construct_outside_the_subset_is_refused_by_name(change: Change, named: str) -> None:
    if not named:
        load_program(changed(change))  # declared and never used
        return
    with pytest.raises(UnsupportedProgramError, match=named):
        load_program(changed(change))


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"\xff\xfe", b'{"__meta__": {"version": [2, 23]}}'])
def test_a_file_that_is_no_program_is_said_to_be_none(text: bytes) -> None:
    with pytest.raises(UnsupportedProgramError):
        load_program(text)


def test_the_same_program_generates_the_same_code() -> None:
    text = json.dumps(PROGRAM).encode()
    moved = changed(lambda j: j.update(program="elsewhere/traffic.p4"))
    assert generate(load_program(text)).source == generate(load_program(moved)).source
    assert load_program(text).digest == load_program(moved).digest
