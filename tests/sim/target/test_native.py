"""The subset of Python that generated code is written in: compiled, it does what Python does."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchreduce.sim.target.native import SIGNED, UNSIGNED, Intrinsic, Loaded, compile_to_object

NUMBERS = """
TABLE = [3, 1, 0xffffffffffffffff]

def is_odd(n):
    return n & 1 == 1

def signed(a, b, c):
    total = 0
    for i in range(a, b, 3):
        if i == c:
            continue
        if i - c > 60:
            break
        total += i if is_odd(i) else -i
    for i in range(5, -1, -2):
        total -= i
    n = 0
    while True:
        n += 1
        if n >= 7 and is_odd(n):
            break
    low, high = min(a, b), max(a, b)
    if low <= c < high or not (c != 0):
        total = total + (a // 7) * 100 + a % -7
    return total * 2 + n + (c >> 2) + (~a & b | 4 ^ c)

def unsigned(a, b, c):
    value = U(a) + U(b)
    value ^= value >> U(7)
    return int64((value % U(1000003)) // U(3) + TABLE[U(c) % U(3)] + U(is_odd(a)))

def guarded(a, b, c):
    quotient = a // b if b != 0 else -1
    if b == 0 or a // b > c:
        quotient -= 1
    return quotient
"""
WORD = (1 << 64) - 1


class Words:
    """Python's numbers as machine words, for running the text as Python."""

    def __init__(self) -> None:
        self.names: dict[str, Callable[[int, int, int], int]] = {}
        scope: dict[str, object] = {"U": lambda x: int(x) & WORD, "int64": self.signed}
        text = NUMBERS.replace("U(a) + U(b)", "U(U(a) + U(b))").replace(
            "int64((value % U(1000003)) // U(3) + TABLE[U(c) % U(3)] + U(is_odd(a)))",
            "int64(U((value % U(1000003)) // U(3) + TABLE[U(c) % U(3)] + U(is_odd(a))))",
        )
        exec(text, scope)
        for name in ("signed", "unsigned", "guarded"):
            self.names[name] = scope[name]  # type: ignore[assignment]

    @staticmethod
    def signed(x: int) -> int:
        return ((int(x) & WORD) ^ 1 << 63) - (1 << 63)


@pytest.fixture(scope="module", params=["signed", "unsigned", "guarded"])
def both(request: pytest.FixtureRequest) -> list[Callable[[int, int, int], int]]:
    code = Loaded(compile_to_object([NUMBERS], {}, {}, request.param, (SIGNED,) * 3))
    compiled = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 4)(code.address(request.param))

    def call(a: int, b: int, c: int, keep: Loaded = code) -> int:
        return compiled(a, b, c)

    return [call, Words().names[request.param]]


SMALL = st.integers(-200, 200)


@given(a=SMALL, b=SMALL, c=SMALL)
def test_compiled_functions_do_what_python_does(
    both: list[Callable[[int, int, int], int]], a: int, b: int, c: int
) -> None:
    assert both[0](a, b, c) == both[1](a, b, c)


@pytest.mark.parametrize(
    "text",
    [
        "def f(a):\n    return a + U(1)",
        "def f(a):\n    return 1 if a < U(1) else 2",
        "def f(a):\n    x = a\n    x = U(a)\n    return x",
        "def f(a):\n    return a if a > 0 else U(a)",
        "def f(a):\n    if a > 0:\n        return a\n    return U(a)",
        "def f(a):\n    return read(a)",
    ],
)
def test_mixed_types_are_refused(text: str) -> None:
    read = Intrinsic((UNSIGNED,), UNSIGNED, lambda builder, value: value)
    with pytest.raises(TypeError):
        compile_to_object([text], {}, {"read": read}, "f", (SIGNED,))
