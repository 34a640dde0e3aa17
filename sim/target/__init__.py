"""The embedded switch: runs a compiled P4 program (BMv2 JSON for simple_switch) as BMv2 would."""

from switchreduce.sim.target.frames import Frames
from switchreduce.sim.target.load import load_program
from switchreduce.sim.target.switch import Switch
from switchreduce.sim.target.tables import (
    Entry,
    EntryExists,
    EntryNotFound,
    Exact,
    Lpm,
    Range,
    TableConst,
    TableFull,
    Ternary,
)

__all__ = [
    "Entry",
    "EntryExists",
    "EntryNotFound",
    "Exact",
    "Frames",
    "Lpm",
    "Range",
    "Switch",
    "TableConst",
    "TableFull",
    "Ternary",
    "load_program",
]
