"""Expressions to source text.

Numbers are uint64 words that agree with BMv2's unbounded integer modulo 2**n for the n bits that the reader
needs; where the exact value matters (comparison, shift to the right, division) `bounds.known` decides whether
64 bits hold it, else it is computed in several words. Addresses appear in the text as `@17@`, so that
`reroll.py` can see how they advance from statement to statement.
"""

from __future__ import annotations

from switchreduce.sim.target import ir
from switchreduce.sim.target.bounds import Facts, Known, known
from switchreduce.sim.target.emit_wide import Code, Loop, literal, mask_to
from switchreduce.sim.target.ir import Const, Expr, Op, unsupported
from switchreduce.sim.target.layout import Layout, words

_COMPARISONS = frozenset(["==", "!=", "<", "<=", ">", ">="])
_UNROLLED_WORDS = 4  # up to this many words, bit by bit composition beats a loop
_CAST_BITS = 62


class Values:
    """Writes expressions within one block of statements.

    `lines` receives the statements that an expression needs before it; temporaries are numbered anew for each
    statement so that like statements read alike.
    """

    def __init__(
        self, layout: Layout, constants: dict[tuple[int, ...], str], params: list[Const] | None = None
    ):
        self.layout = layout
        self.constants = constants  # words of a constant -> name of a module-level array
        self.params = params  # action data known when the code is generated
        self.param_offsets: list[int] = []
        self.facts: Facts = {}
        self.lines: list[str] = []
        self.reads: set[int] = set()
        self.scratch_words = 0
        self._temporaries = 0
        self._scratch = 0

    def begin(self) -> None:
        """Starts a statement."""
        self.lines = []
        self.reads = set()
        self._temporaries = 0
        self._scratch = 0

    def temporary(self, text: str, prefix: str = "t") -> str:
        name = f"{prefix}{self._temporaries}"
        self._temporaries += 1
        self.lines.append(f"{name} = {text}")
        return name

    def scratch(self, n: int) -> int:
        at = self.layout.phv_words + self._scratch
        self._scratch += n
        self.scratch_words = max(self.scratch_words, self._scratch)
        return at

    def known(self, e: Expr) -> Known:
        return known(e, self.facts)

    # ------------------------------------------------------------------------------------ up to 64 bits

    def low(self, e: Expr, n: int) -> str:
        """Exactly the low n <= 64 bits."""
        return mask_to(self.mod(e, n), n).text

    def mod(self, e: Expr, n: int) -> Code:
        """A value that agrees with `e` modulo 2**n, n <= 64."""
        return self.bits(e, 0, n)

    def bits(self, e: Expr, lo: int, n: int) -> Code:
        """A value that agrees with e >> lo modulo 2**n, n <= 64."""
        if isinstance(e, ir.Bool):
            return Code(f"U({int(e.value)})" if lo == 0 else "U(0)", int(e.value))
        if ir.is_boolean(e):
            return Code(f"(U(1) if {self.boolean(e)} else U(0))" if lo == 0 else "U(0)", 1)
        if isinstance(e, Const):
            value = (e.value >> lo) & ((1 << n) - 1)
            return Code(literal(value), value.bit_length())
        if isinstance(e, Op):
            return self._op_bits(e, lo, n)
        if isinstance(e, ir.Lookahead):
            take = min(n, e.width - lo)
            if take <= 0:
                return Code("U(0)", 0)
            return Code(f"in_bits(inp, end, 8 * pos + {e.bit_offset + e.width - lo - take}, {take})", take)
        if isinstance(e, ir.StackCount):
            return self._piece(f"get(phv, @{self._read(self.layout.stack_next[e.stack])}@)", 32, False, lo, n)
        return self._leaf_bits(e, lo, n)

    def _leaf_bits(self, e: Expr, lo: int, n: int) -> Code:
        if isinstance(e, ir.Param) and self.params is not None:
            return self.bits(self.params[e.number], lo, n)
        width, signed, word = self._leaf(e)
        if width <= 64:
            return self._piece(word(0), width, signed, lo, n)
        if lo >= width:
            return Code("U(0)", 0)
        count = words(width)
        first, shift = divmod(lo, 64)
        piece = self._piece(word(count - 1 - first), min(64, width - 64 * first), False, shift, n)
        if shift and first + 1 < count and 64 - shift < n:
            above = word(count - 2 - first)
            return Code(f"({piece.text} | ({above} << {literal(64 - shift)}))", min(64, width - lo))
        return piece

    def _piece(self, text: str, width: int, signed: bool, lo: int, n: int) -> Code:
        if signed and lo + n > width:
            text = f"sext({text}, {width})"
            return Code(f"sar({text}, {literal(lo)})" if lo else text, 64)
        if lo >= width:
            return Code("U(0)", 0)
        return Code(f"({text} >> {literal(lo)})" if lo else text, width - lo)

    def _read(self, address: int, n: int = 1) -> int:
        self.reads.update(range(address, address + n))
        return address

    def _leaf(self, e: Expr):  # type: ignore[no-untyped-def]
        """(width, signed, text of word number k) of something that lies in memory."""
        if isinstance(e, ir.Load):
            at = self._read(self.layout.address(e.field), words(e.field.width))
            return e.field.width, e.field.signed, lambda k: f"get(phv, @{at + k}@)"
        if isinstance(e, ir.Param):
            offset = self.param_offsets[e.number]
            return e.width, False, lambda k: f"peek(mem, args + {offset + k})"
        if isinstance(e, ir.Computed):
            texts = e.words
            return e.width, False, lambda k: texts[k]
        if isinstance(e, ir.LoadLast):
            f = e.stack.headers[0].fields[e.index]
            where = self.last_element(e.stack)
            at = self.layout.address(f)
            self._read_stack(e.stack)
            return f.width, f.signed, lambda k: f"get(phv, @{at + k}@ + {where})"
        assert isinstance(e, ir.LoadAt)
        f = e.stack.headers[0].fields[e.index]
        where = self.element(e.stack, e.position)
        at = self.layout.address(f)
        self._read_stack(e.stack)
        return f.width, f.signed, lambda k: f"(get(phv, @{at + k}@ + {where}) if {where} >= 0 else U(0))"

    def _read_stack(self, stack: ir.Stack) -> None:
        first = self.layout.valid[stack.headers[0]]
        self._read(first, max(1, self.layout.stack_stride[stack]) * len(stack.headers))

    def last_element(self, stack: ir.Stack) -> str:
        """Words from a stack's first element to the one put on last (the first, where none was)."""
        at, stride = self.layout.stack_next[stack], self.layout.stack_stride[stack]
        self._read(at)
        return self.temporary(f"max(int64(get(phv, @{at}@)) - 1, 0) * {stride}", "s")

    def element(self, stack: ir.Stack, position: Expr) -> str:
        """Words from a stack's first element to element `position`, or a negative number out of range."""
        index, size = self.index(position, len(stack.headers)), len(stack.headers)
        return self.temporary(
            f"({index} * {self.layout.stack_stride[stack]} if {index} < {size} else -1)", "s"
        )

    def index(self, e: Expr, size: int) -> str:
        """An int64 in 0 .. size; `size` stands for all that is out of range. BMv2 reads 32 bits."""
        if isinstance(e, Const):
            return str(min(e.value & 0xFFFFFFFF, size))
        code = mask_to(self.mod(e, 32), 32).text
        return self.temporary(f"cell({code}, {size})", "r")

    def _op_bits(self, e: Op, lo: int, n: int) -> Code:
        op, args = e.op, e.args
        if op == "b2d":
            return self.bits(args[0], lo, n)
        if op == "?":
            condition = self.boolean(args[0])
            a, b = self.bits(args[1], lo, n), self.bits(args[2], lo, n)
            return Code(f"({a.text} if {condition} else {b.text})", max(a.bits, b.bits))
        if op == "&":
            return self._and_bits(e, lo, n)
        if op in ("|", "^"):
            a, b = self.bits(args[0], lo, n), self.bits(args[1], lo, n)
            if "U(0)" in (a.text, b.text):
                return b if a.text == "U(0)" else a
            return Code(f"({a.text} {op} {b.text})", max(a.bits, b.bits))
        if op == "~":
            return Code(f"(~{self.bits(args[0], lo, n).text})", 64)
        if op in ("<<", ">>") and isinstance(args[1], Const):
            return self._constant_shift_bits(e, args[1].value, lo, n)
        if op == "two_comp_mod" and lo == 0 and isinstance(args[1], Const):
            width = args[1].value
            if n <= width:
                return self.mod(args[0], n)
            if width <= 64:
                return Code(f"sext({self.mod(args[0], width).text}, {width})", 64)
        if lo == 0 and op in ("+", "-", "*"):
            a, b = self.mod(args[0], n), self.mod(args[1], n)
            bits = max(a.bits, b.bits) + 1 if op == "+" else a.bits + b.bits if op == "*" else 64
            return Code(f"({a.text} {op} {b.text})", min(64, bits))
        if lo == 0 and op == "<<":
            amount = self.exact(args[1])[0]
            return Code(f"shl({self.mod(args[0], n).text}, {amount})", 64)
        if self._fits_word(self.known(e)):
            text, signed = self._exact_op(e)
            bits = 64 if signed else self.known(e).high.bit_length()
            if lo == 0:
                return Code(text, bits)
            return Code(f"sar({text}, {literal(lo)})" if signed else f"({text} >> {literal(lo)})", bits)
        count = min(max(self.known(e).words, 1), words(lo + n)) if self.known(e).low >= 0 else words(lo + n)
        if lo >= 64 * count:
            return Code("U(0)", 0)
        at = self.wide(e, count)
        return self._words_bits(at, count, lo, n)

    def _words_bits(self, at: int, count: int, lo: int, n: int) -> Code:
        first, shift = divmod(lo, 64)
        text = f"get(phv, @{at + count - 1 - first}@)"
        if shift:
            text = f"({text} >> {literal(shift)})"
            if first + 1 < count and 64 - shift < n:
                text = f"({text} | (get(phv, @{at + count - 2 - first}@) << {literal(64 - shift)}))"
        return Code(text, 64)

    def _and_bits(self, e: Op, lo: int, n: int) -> Code:
        a_known, b_known = self.known(e.args[0]), self.known(e.args[1])
        # neither side's bits beyond the other's last possible one-bit matter
        reach = min(k.may.bit_length() if k.may >= 0 else lo + n for k in (a_known, b_known))
        n = min(n, reach - lo)
        if n <= 0:
            return Code("U(0)", 0)
        a, b = self.bits(e.args[0], lo, n), self.bits(e.args[1], lo, n)
        for side, other in ((e.args[1], a), (e.args[0], b)):
            if isinstance(side, Const):
                ones = (side.value >> lo) & ((1 << 64) - 1)
                if ones & ((1 << other.bits) - 1) == (1 << other.bits) - 1:
                    return other
        return Code(f"({a.text} & {b.text})", min(a.bits, b.bits))

    def _constant_shift_bits(self, e: Op, k: int, lo: int, n: int) -> Code:
        if e.op == ">>":
            return self.bits(e.args[0], lo + k, n)
        if lo >= k:
            return self.bits(e.args[0], lo - k, n)
        up = k - lo
        if up >= n:
            return Code("U(0)", 0)
        below = self.bits(e.args[0], 0, n - up)
        if below.bits == 0:
            return below
        return Code(f"({below.text} << {literal(up)})", min(64, below.bits + up))

    # ------------------------------------------------------------------------------------ exact values

    @staticmethod
    def _fits_word(k: Known) -> bool:
        return (k.low >= 0 and k.high < 1 << 64) or (k.low >= -(1 << 63) and k.high < 1 << 63)

    def exact(self, e: Expr) -> tuple[str, bool]:
        """(text, whether it is two's complement) of a value that 64 bits hold."""
        k = self.known(e)
        if not self._fits_word(k):
            if k.low >= 0:  # more than 64 bits, and only "too large" matters to shifts: saturate
                at = self.wide(e, k.words)
                return f"saturated(phv, @{at}@, {k.words})", False
            raise unsupported("a shift or division by a negative number of more than 64 bits")
        if isinstance(e, Op) and not ir.is_boolean(e) and e.op in ("/", "%", ">>", "usat_cast", "sat_cast"):
            return self._exact_op(e)
        return self.mod(e, 64).text, k.low < 0

    def _exact_op(self, e: Op) -> tuple[str, bool]:
        op = e.op
        if op in ("usat_cast", "sat_cast"):
            assert isinstance(e.args[1], Const)
            width = e.args[1].value
            value = self.known(e.args[0])
            if width > _CAST_BITS or value.low < -(1 << 63) or value.high >= 1 << 63:
                raise unsupported(f"saturating arithmetic on more than {_CAST_BITS} bits")
            text = self.mod(e.args[0], 64).text
            return f"{'usat' if op == 'usat_cast' else 'ssat'}({text}, {width})", op == "sat_cast"
        if op in ("/", "%"):
            k, m = self.known(e.args[0]), self.known(e.args[1])
            if k.low < 0 or m.low < 0 or k.high >> 64 or m.high >> 64:
                raise unsupported(f"'{op}' of negative numbers or of more than 64 bits")
            a, b = self.exact(e.args[0])[0], self.exact(e.args[1])[0]
            return f"{'div' if op == '/' else 'rem'}({a}, {b})", False
        if op == ">>":
            k = self.known(e.args[0])
            amount = self.exact(e.args[1])[0]
            if self._fits_word(k):
                text, signed = self.exact(e.args[0])
                return f"{'sar' if signed else 'shr'}({text}, {amount})", signed
            at = self._shifted_right(e, k.words)
            return f"get(phv, @{at + k.words - 1}@)", k.low < 0
        return self.mod(e, 64).text, self.known(e).low < 0

    def boolean(self, e: Expr) -> str:
        if isinstance(e, ir.Bool):
            return str(e.value)
        if isinstance(e, ir.Valid):
            if e.header.metadata:
                return "True"
            return f"(get(phv, @{self._read(self.layout.valid[e.header])}@) != U(0))"
        if isinstance(e, ir.ValidAt):
            where = self.element(e.stack, e.position)
            self._read_stack(e.stack)
            at = self.layout.valid[e.stack.headers[0]]
            return f"({where} >= 0 and get(phv, @{at}@ + {where}) != U(0))"
        assert isinstance(e, Op)
        if e.op == "not":
            return f"(not {self.boolean(e.args[0])})"
        if e.op in ("and", "or"):
            return f"({self.boolean(e.args[0])} {e.op} {self.boolean(e.args[1])})"
        if e.op == "?":
            c, a, b = (self.boolean(x) for x in e.args)
            return f"({a} if {c} else {b})"
        if e.op == "d2b":
            inner = e.args[0]
            if isinstance(inner, Op) and inner.op == "b2d":
                return self.boolean(inner.args[0])
            return self._compare("!=", inner, Const(0))
        if ir.is_boolean(e.args[0]):
            return f"({self.boolean(e.args[0])} {e.op} {self.boolean(e.args[1])})"
        return self._compare(e.op, *e.args)

    def _compare(self, op: str, a: Expr, b: Expr) -> str:
        ka, kb = self.known(a), self.known(b)
        for k in (ka, kb):
            if max(k.high, -k.low) >= 1 << 4096:
                raise unsupported(
                    "comparison of a value of unlimited width (a shift to the left by a variable)"
                )
        if ka.low >= 0 and kb.low >= 0 and ka.high < 1 << 64 and kb.high < 1 << 64:
            return f"({self.exact(a)[0]} {op} {self.exact(b)[0]})"
        if all(k.low >= -(1 << 63) and k.high < 1 << 63 for k in (ka, kb)):
            return f"(int64({self.exact(a)[0]}) {op} int64({self.exact(b)[0]}))"
        n = Known.between(min(ka.low, kb.low), max(ka.high, kb.high)).words
        if ka.low >= 0 and kb.low >= 0 and op not in ("==", "!=") and max(ka.high, kb.high) >> (64 * n - 1):
            n += 1  # room for the sign that wide_less looks at
        x, y = self.wide(a, n), self.wide(b, n)
        equal, less, greater = (
            f"wide_equal(phv, @{x}@, @{y}@, {n})",
            f"wide_less(phv, @{x}@, @{y}@, {n})",
            f"wide_less(phv, @{y}@, @{x}@, {n})",
        )
        return {"==": equal, "!=": f"(not {equal})", "<": less, ">": greater,
                "<=": f"(not {greater})", ">=": f"(not {less})"}[op]  # fmt: skip

    # ------------------------------------------------------------------------------------ many words

    def wide(self, e: Expr, n: int) -> int:
        """The address of n words that hold `e` modulo 2**(64 n), computed into scratch space where needed."""
        if isinstance(e, ir.Load) and not e.field.signed and words(e.field.width) == n:
            return self._read(self.layout.address(e.field), n)
        at = self.scratch(n)
        if self.composable(e) and n <= _UNROLLED_WORDS:
            for k in range(n):
                self.lines.append(f"put(phv, @{at + k}@, {self.bits(e, 64 * (n - 1 - k), 64).text})")
            return at
        loop = Loop(self, n)
        text = loop.word(e)
        self.lines += loop.render(f"put(phv, @{at}@ + i, {text})")
        return at

    def composable(self, e: Expr) -> bool:
        """Whether `bits` writes any piece of `e` without going through scratch space."""
        if isinstance(e, Op) and not ir.is_boolean(e):
            if e.op in ("&", "|", "^"):
                return all(self.composable(a) for a in e.args)
            if e.op == "~":
                return self.composable(e.args[0])
            if e.op in ("<<", ">>") and isinstance(e.args[1], Const):
                return self.composable(e.args[0])
            if e.op == "?":
                return all(self.composable(a) for a in e.args[1:])
            return self._fits_word(self.known(e))
        return True

    def _shifted_right(self, e: Op, n: int) -> int:
        k = self.known(e.args[0])
        a = self.wide(e.args[0], n)
        amount = self.exact(e.args[1])[0]
        to = self.scratch(n)
        fill = "U(0)" if k.low >= 0 else f"sar(get(phv, @{a}@), U(63))"
        self.lines.append(f"wide_shr(phv, @{a}@, {n}, {amount}, {fill}, @{to}@)")
        return to
