"""What is known about an expression's value before it runs: its range, and which bits may or must be one.

Both serve one purpose: BMv2 computes on unbounded integers, and the generated code may use 64-bit words only
where the result cannot differ. Bit sets are Python integers in two's complement, so `may == -1` means that
every bit, up to infinity, may be one.
"""

from __future__ import annotations

from dataclasses import dataclass

from switchreduce.sim.target import ir
from switchreduce.sim.target.ir import Expr, Field, Op

UNBOUNDED = 1 << 8192  # larger than any value that a program within the width limits can hold on to
WORD = (1 << 64) - 1


@dataclass(frozen=True)
class Known:
    """low <= value <= high; bits outside `may` are zero; bits inside `must` are one."""

    low: int
    high: int
    may: int
    must: int

    @staticmethod
    def unsigned(width: int) -> Known:
        full = (1 << width) - 1
        return Known(0, full, full, 0)

    @staticmethod
    def between(low: int, high: int) -> Known:
        return Known(low, high, (1 << high.bit_length()) - 1 if low >= 0 else -1, 0)

    @property
    def words(self) -> int:
        """64-bit words of a two's complement number, sign bit included where the value may be negative."""
        if self.low >= 0:
            return max(1, -(-self.high.bit_length() // 64))
        return -(-(max(self.high.bit_length(), (-self.low - 1).bit_length()) + 1) // 64)


Facts = dict[Field, Known]


def known(e: Expr, facts: Facts) -> Known:
    """What is known of `e`; `facts` holds what the statements before it left in fields."""
    if isinstance(e, ir.Const):
        return Known(e.value, e.value, e.value, e.value)
    if isinstance(e, ir.Load):
        return facts.get(e.field) or _of_field(e.field)
    if isinstance(e, (ir.LoadLast, ir.LoadAt)):
        return _of_field(e.stack.headers[0].fields[e.index])
    if isinstance(e, (ir.Param, ir.Lookahead, ir.Computed)):
        return Known.unsigned(e.width)
    if isinstance(e, ir.StackCount):
        return Known.between(0, len(e.stack.headers))
    if isinstance(e, Op):
        return _of_op(e, facts)
    return Known.between(0, 1)


def _of_field(field: Field) -> Known:
    if field.signed:
        return Known.between(-(1 << (field.width - 1)), (1 << (field.width - 1)) - 1)
    return Known.unsigned(field.width)


def _of_op(e: Op, facts: Facts) -> Known:
    op = e.op
    if ir.is_boolean(e) or op == "b2d":
        return Known.between(0, 1)
    if op == "?":
        a, b = known(e.args[1], facts), known(e.args[2], facts)
        return Known(min(a.low, b.low), max(a.high, b.high), a.may | b.may, a.must & b.must)
    a = known(e.args[0], facts)
    if op == "~":
        return Known(-a.high - 1, -a.low - 1, ~a.must, ~a.may)
    b = known(e.args[1], facts)
    if op in ("&", "|", "^"):
        return _bitwise(op, a, b)
    if op == "+":
        return Known.between(a.low + b.low, a.high + b.high)
    if op == "-":
        r = Known.between(a.low - b.high, a.high - b.low)
        # bits above a's cannot appear while nothing is borrowed
        return Known(max(r.low, 0), a.high, (1 << a.high.bit_length()) - 1, 0) if no_borrow(e, facts) else r
    if op == "*":
        products = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
        return Known.between(min(products), max(products))
    if op in ("<<", ">>"):
        return _shift(op, a, b)
    if op == "two_comp_mod":
        half = 1 << (b.high - 1)
        return Known.between(-half, half - 1)
    if op == "usat_cast":
        return Known.between(0, (1 << b.high) - 1)
    if op == "sat_cast":
        half = 1 << (b.high - 1)
        return Known.between(-half, half - 1)
    if op == "/":
        return Known.between(0, max(a.high, 0))
    if op == "%":
        return Known.between(0, max(b.high - 1, 0))
    raise AssertionError(f"no bounds for {op}")


def _bitwise(op: str, a: Known, b: Known) -> Known:
    if op == "&":
        may, must = a.may & b.may, a.must & b.must
    elif op == "|":
        may, must = a.may | b.may, a.must | b.must
    else:
        may, must = a.may | b.may, (a.must & ~b.may) | (b.must & ~a.may)
    if may >= 0:
        high = may
        if op == "&":
            high = min([may, *(k.high for k in (a, b) if k.low >= 0)])
        return Known(0, high, may, must)
    bits = max(x.bit_length() for x in (a.low, a.high, b.low, b.high))
    return Known(-(1 << bits), (1 << bits) - 1, may, must)


def _shift(op: str, a: Known, b: Known) -> Known:
    if b.low != b.high:
        if op == ">>":
            return Known.between(min(a.low, 0), max(a.high, 0))
        return Known.between(0 if a.low >= 0 else -UNBOUNDED, UNBOUNDED)
    k = min(max(b.low, 0), 8192)
    if op == "<<":
        return Known(a.low << k, a.high << k, a.may << k, a.must << k)
    return Known(a.low >> k, a.high >> k, a.may >> k, a.must >> k)


# ------------------------------------------------------------------ 64-bit words that do not touch each other


def _word_pairs(a: int, b: int) -> list[tuple[int, int]]:
    count = max(1, -(-max(a.bit_length(), b.bit_length()) // 64))
    return [((a >> (64 * i)) & WORD, (b >> (64 * i)) & WORD) for i in range(count)]


def no_carry(e: Op, facts: Facts) -> bool:
    """Whether in the sum `e` no carry can leave any 64-bit word."""
    a, b = known(e.args[0], facts), known(e.args[1], facts)
    return a.may >= 0 and b.may >= 0 and all(x + y <= WORD for x, y in _word_pairs(a.may, b.may))


def no_borrow(e: Op, facts: Facts) -> bool:
    """Whether in the difference `e` no 64-bit word can borrow from the next.

    True where no word of the right side can exceed the smallest value of the left side's, and for
    x - (x >> k) whose shift moves no bit between words: each word is then at least its own shifted self.
    """
    left, right = e.args
    a, b = known(left, facts), known(right, facts)
    if a.low < 0 or b.low < 0 or b.may < 0:
        return False
    left, right = unmasked(left, facts), unmasked(right, facts)
    if (
        isinstance(right, Op)
        and right.op == ">>"
        and word_local(right, facts)
        and unmasked(right.args[0], facts) == left
    ):
        return True
    return all(y <= x for x, y in _word_pairs(a.must, b.may))


def unmasked(e: Expr, facts: Facts) -> Expr:
    """The expression without masks that change nothing; p4c puts one around every operation."""
    while isinstance(e, Op) and e.op == "&" and isinstance(e.args[1], ir.Const):
        may = known(e.args[0], facts).may
        if may < 0 or may & e.args[1].value != may:
            break
        e = e.args[0]
    return e


def word_local(e: Op, facts: Facts) -> bool:
    """Whether the shift `e` by a constant moves no one-bit from one 64-bit word into another."""
    a, amount = known(e.args[0], facts), e.args[1]
    if not isinstance(amount, ir.Const) or not 0 <= amount.value < 64 or a.may < 0:
        return False
    k = amount.value
    crossing = ((1 << k) - 1) if e.op == ">>" else ((1 << k) - 1) << (64 - k)
    words = range(1 if e.op == ">>" else 0, -(-a.may.bit_length() // 64))
    return all((a.may >> (64 * i)) & crossing == 0 for i in words)
