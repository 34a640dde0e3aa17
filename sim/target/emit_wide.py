"""Wide values word by word, and the text of values in general."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from switchreduce.sim.target import ir
from switchreduce.sim.target.bounds import no_borrow, no_carry, word_local
from switchreduce.sim.target.ir import Const, Expr, Op, unsupported
from switchreduce.sim.target.layout import words

if TYPE_CHECKING:
    from switchreduce.sim.target.emit_values import Values


class Code(NamedTuple):
    """Text of a uint64 value that is below 2**bits."""

    text: str
    bits: int


def literal(value: int) -> str:
    return f"U({value:#x})" if value > 9 else f"U({value})"


def mask_to(code: Code, n: int) -> Code:
    if code.bits <= n:
        return code
    return Code(f"({code.text} & {literal((1 << n) - 1)})", n)


class Loop:
    """One pass over the n words of a wide value; `i` is the word's number, 0 the most significant."""

    def __init__(self, values: Values, n: int):
        self.values = values
        self.n = n
        self.before: list[str] = []
        self.body: list[str] = []
        self._shared: dict[Op, str] = {}  # subexpressions that occur again -> variable, once computed
        self._seen: set[Op] = set()
        self._again: set[Op] = set()

    def render(self, last: str) -> list[str]:
        order = f"range({self.n - 1}, -1, -1)" if self.before else f"range({self.n})"
        return [*self.before, f"for i in {order}:", *("    " + line for line in [*self.body, last])]

    def word(self, e: Expr) -> str:
        """Text of word i of `e`, in two's complement modulo 2**(64 n)."""
        if not self._seen:
            self._count(e)
        if not isinstance(e, Op) or e not in self._again:
            return self._word(e)
        if e not in self._shared:
            text = self._word(e)
            self._shared[e] = f"w{len(self._shared)}"
            self.body.append(f"{self._shared[e]} = {text}")
        return self._shared[e]

    def _count(self, e: Expr) -> None:
        """Finds subexpressions that occur more than once (p4c puts temporaries into their uses)."""
        if isinstance(e, Op) and not ir.is_boolean(e):
            if e in self._seen:
                self._again.add(e)
                return
            self._seen.add(e)
            for a in e.args:
                self._count(a)

    def _word(self, e: Expr) -> str:
        v, n = self.values, self.n
        if isinstance(e, Const):
            return self._constant(e.value)
        if isinstance(e, ir.Param) and v.params is not None:
            return self._constant(v.params[e.number].value)
        if isinstance(e, (ir.Load, ir.Param)) and not ir.is_boolean(e):
            width = e.field.width if isinstance(e, ir.Load) else e.width
            m = words(width)
            if isinstance(e, ir.Load):
                at = v.layout.address(e.field)
                if m >= n and not e.field.signed:
                    v._read(at, m)
                    return f"get(phv, @{at + m - n}@ + i)"
            elif m >= n:
                return f"peek(mem, args + {v.param_offsets[e.number] + m - n} + i)"
        if isinstance(e, Op) and not ir.is_boolean(e):
            text = self._operation(e)
            if text is not None:
                return text
        return self._extended(e)

    def _constant(self, value: int) -> str:
        parts = tuple((value >> (64 * (self.n - 1 - k))) & ((1 << 64) - 1) for k in range(self.n))
        if len(set(parts)) == 1:
            return literal(parts[0])
        name = self.values.constants.setdefault(parts, f"WORDS_{len(self.values.constants)}")
        return f"{name}[i]"

    def _operation(self, e: Op) -> str | None:
        v, n, op = self.values, self.n, e.op
        if op == "&":
            return self._and(e)
        if op in ("|", "^"):
            return f"({self.word(e.args[0])} {op} {self.word(e.args[1])})"
        if op == "~":
            return f"(~{self.word(e.args[0])})"
        if op == "?":
            condition = v.temporary(v.boolean(e.args[0]), "b")
            return f"({self.word(e.args[1])} if {condition} else {self.word(e.args[2])})"
        if op in ("+", "-"):
            return self._sum(e)
        if op in ("<<", ">>") and word_local(e, v.facts) and isinstance(e.args[1], Const):
            return f"({self.word(e.args[0])} {op} {literal(e.args[1].value)})"
        if op == ">>":
            m = max(n, v.known(e.args[0]).words)
            at = v._shifted_right(e, m)
            return f"get(phv, @{at + m - n}@ + i)"
        if op == "<<":
            a = v.wide(e.args[0], n)
            amount, to = v.exact(e.args[1])[0], v.scratch(n)
            v.lines.append(f"wide_shl(phv, @{a}@, {n}, {amount}, @{to}@)")
            return f"get(phv, @{to}@ + i)"
        if op == "*":
            a, b = v.wide(e.args[0], n), v.wide(e.args[1], n)
            to = v.scratch(n)
            v.lines.append(f"wide_mul(phv, @{a}@, @{b}@, {n}, @{to}@)")
            return f"get(phv, @{to}@ + i)"
        if op in ("usat_cast", "sat_cast", "two_comp_mod", "/", "%") and not v._fits_word(v.known(e)):
            raise unsupported(f"'{op}' on more than 64 bits")
        return None

    def _and(self, e: Op) -> str:
        v = self.values
        for mask, other in (e.args, e.args[::-1]):
            if isinstance(mask, Const):
                all_bits = (1 << (64 * self.n)) - 1
                may = v.known(other).may & all_bits
                if mask.value & may == may:
                    return self.word(other)
        return f"({self.word(e.args[0])} & {self.word(e.args[1])})"

    def _sum(self, e: Op) -> str:
        v = self.values
        a, b = self.word(e.args[0]), self.word(e.args[1])
        free = no_carry(e, v.facts) if e.op == "+" else no_borrow(e, v.facts)
        if free:
            return f"({a} {e.op} {b})"
        k = len(self.before)
        carry, x, y, s = f"c{k}", f"x{k}", f"y{k}", f"z{k}"
        self.before.append(f"{carry} = U(0)")
        self.body += [f"{x} = {a}", f"{y} = {b}", f"{s} = {x} {e.op} {y}"]
        if e.op == "+":
            self.body += [
                f"{y} = {s} + {carry}",
                f"{carry} = U(1) if {s} < {x} or {y} < {s} else U(0)",
            ]
        else:
            self.body += [
                f"{y} = {s} - {carry}",
                f"{carry} = U(1) if {s} > {x} or {y} > {s} else U(0)",
            ]
        return y

    def _extended(self, e: Expr) -> str:
        """A narrower value, brought to n words in scratch space."""
        v = self.values
        k = v.known(e)
        m = min(k.words, self.n)
        to = v.scratch(self.n)
        if v._fits_word(k):
            text, signed = v.exact(e)
            name = v.temporary(text)
            fill = f"sar({name}, U(63))" if signed else "U(0)"
            v.lines.append(f"put(phv, @{to + self.n - 1}@, {name})")
            v.lines.append(f"wide_extend(phv, @{to + self.n - 1}@, 1, @{to}@, {self.n}, {fill})")
            return f"get(phv, @{to}@ + i)"
        if isinstance(e, Op) and not ir.is_boolean(e):
            raise unsupported(f"'{e.op}' on more than 64 bits")
        for j in range(m):
            v.lines.append(f"put(phv, @{to + self.n - m + j}@, {v.bits(e, 64 * (m - 1 - j), 64).text})")
        v.lines.append(f"wide_extend(phv, @{to + self.n - m}@, {m}, @{to}@, {self.n}, U(0))")
        return f"get(phv, @{to}@ + i)"
