"""Operators on fields of one word and of many, against Python's integers."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from switchreduce.sim.target import Switch

from .bits import pack, unpack

OPERANDS = [
    ("a", 200), ("b", 200), ("c", 64), ("d", 64), ("e", 32), ("f", 32), ("s", 8), ("unused", 8),
    ("g", 32), ("h", 32), ("k", 256), ("l", 256), ("m", 512), ("n", 512),
]  # fmt: skip
RESULTS = [
    *((n, 200) for n in ["add", "sub", "mul", "and", "or", "xor", "not", "shl", "shr"]),
    ("shl_13", 200), ("shr_77", 200), ("pick", 200), ("mixed", 200), ("slices", 200),
    *((n, 64) for n in ["add64", "sub64", "mul64", "shl64", "shr64", "middle"]),
    ("joined", 128),
    *((n, 32) for n in ["sat_add", "sat_sub", "ssat_add", "ssat_sub", "sra"]),
    ("extended", 64), ("average", 64), ("add256", 256), ("cut256", 256),
    ("wide_sum", 512), ("wide_shift", 512), ("wide_mul", 512),
    *((n, 1) for n in ["lt", "le", "eq", "ne", "lt64", "ge64", "slt", "wide_gt"]),
]  # fmt: skip


def signed(value: int, width: int) -> int:
    return value - (1 << width) if value >> (width - 1) else value


def clamp(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))


def reference(o: dict[str, int]) -> dict[str, int]:
    a, b, c, d, e, f, s, k, m, n = (o[x] for x in "abcdefskmn")
    g, h = signed(o["g"], 32), signed(o["h"], 32)
    middle = ((1 << 64) - 1) << 36
    return {
        "add": a + b, "sub": a - b, "mul": a * b, "and": a & b, "or": a | b, "xor": a ^ b, "not": ~a,
        "shl": a << s, "shr": a >> s, "shl_13": a << 13, "shr_77": a >> 77, "pick": a if s > 100 else b,
        "mixed": a + c - (e << 32 | f), "slices": (a & ~middle) | (c << 36),
        "add64": c + d, "sub64": c - d, "mul64": c * d, "shl64": c << s, "shr64": c >> s, "middle": a >> 87,
        "joined": d << 64 | c,
        "sat_add": min(e + f, 2**32 - 1), "sat_sub": max(e - f, 0),
        "ssat_add": clamp(g + h, -(2**31), 2**31 - 1), "ssat_sub": clamp(g - h, -(2**31), 2**31 - 1),
        "sra": g >> s, "extended": g, "average": (c + d) >> 1,
        "add256": k + o["l"], "cut256": ((k - o["l"]) % 2**256) >> 64,
        "wide_sum": m + n - k, "wide_shift": ((m << 200) % 2**512) | (n >> 212), "wide_mul": m * n,
        "lt": a < b, "le": a <= b, "eq": a == b, "ne": k != o["l"], "lt64": c < d, "ge64": c >= d,
        "slt": g < h, "wide_gt": m > n,
    }  # fmt: skip


def interesting(width: int) -> st.SearchStrategy[int]:
    """Values near the edges of words, where carries and signs happen, and any others."""
    edges = [0, 1, (1 << width) - 1, 1 << (width - 1), (1 << (width - 1)) - 1]
    edges += [
        x
        for k in (31, 32, 63, 64, 127, 128)
        if k < width
        for x in (1 << k, (1 << k) - 1, (1 << width) - (1 << k))
    ]
    return st.one_of(st.sampled_from(edges), st.integers(0, (1 << width) - 1))


OPERAND_VALUES = st.fixed_dictionaries({name: interesting(width) for name, width in OPERANDS})


@settings(max_examples=300, deadline=None)
@given(OPERAND_VALUES, st.booleans())
def test_operators_agree_with_python(
    switch_of: Callable[[str], Switch], o: dict[str, int], same: bool
) -> None:
    if same:
        o = {**o, "b": o["a"], "d": o["c"], "l": o["k"], "n": o["m"], "h": o["g"]}
    [(port, frame)] = switch_of("arithmetic").process(0, pack(OPERANDS, o))
    assert port == 1
    got = unpack(RESULTS, frame)
    want = {
        name: value & ((1 << width) - 1)
        for (name, width), value in zip(RESULTS, reference(o).values(), strict=True)
    }
    assert got == want
