"""Memory access and bit arithmetic for the generated code, as numba intrinsics and small functions.

Memory is passed as addresses (int64), not as arrays: a call then costs a register an argument and no
reference counting, and compiling takes a third less time. The address spaces never overlap: packet header
vectors `phv` (words), the switch's memory `mem` (words: registers, counters, tables), the packet that is read
`inp`, the one that is written `out` (bytes), and the batches' descriptions and queue `frames` (int64). Each
access says which space it belongs to; without that LLVM has to assume that all overlap and vectorises none of
the wide loops. Indices are int64, values uint64: numba turns a mix of the two into float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir as llvm
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

U64 = np.uint64
_I64 = llvm.IntType(64)
_SPACES = ("phv", "mem", "inp", "out", "frames")


def _tag(module: Any, instruction: Any, space: str) -> None:
    """Marks an access as belonging to one of the spaces (LLVM's alias.scope and noalias metadata)."""
    domain = module.add_metadata([llvm.MetaDataString(module, "switch memory")])
    scopes = {s: module.add_metadata([llvm.MetaDataString(module, s), domain]) for s in _SPACES}
    instruction.set_metadata("alias.scope", module.add_metadata([scopes[space]]))
    instruction.set_metadata("noalias", module.add_metadata([scopes[s] for s in _SPACES if s != space]))


def _pointer(builder: Any, base: Any, index: Any, index_bits: int, bits: int) -> Any:
    start = builder.inttoptr(base, llvm.IntType(index_bits).as_pointer())
    return builder.bitcast(builder.gep(start, [index]), llvm.IntType(bits).as_pointer())


def _word_load(space: str, kind: Any) -> Any:
    @intrinsic
    def load(typingctx, base, index):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            value = builder.load(_pointer(builder, args[0], args[1], 64, 64), align=8)
            _tag(builder.module, value, space)
            return value

        return kind(types.int64, types.int64), codegen

    return load


def _word_store(space: str, kind: Any) -> Any:
    @intrinsic
    def store(typingctx, base, index, value):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            p = _pointer(builder, args[0], args[1], 64, 64)
            _tag(builder.module, builder.store(args[2], p, align=8), space)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, kind), codegen

    return store


def _swap(builder: Any, value: Any, bits: int) -> Any:
    if bits == 8:
        return value
    kind = llvm.IntType(bits)
    function = cgutils.get_or_insert_function(
        builder.module, llvm.FunctionType(kind, [kind]), f"llvm.bswap.i{bits}"
    )
    return builder.call(function, [value])


def _byte_load(bits: int, space: str | None) -> Any:
    @intrinsic
    def load(typingctx, base, index):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            value = builder.load(_pointer(builder, args[0], args[1], 8, bits), align=1)
            if space:
                _tag(builder.module, value, space)
            value = _swap(builder, value, bits)
            return value if bits == 64 else builder.zext(value, _I64)

        return types.uint64(types.int64, types.int64), codegen

    return load


def _byte_store(bits: int, space: str | None) -> Any:
    @intrinsic
    def store(typingctx, base, index, value):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            p = _pointer(builder, args[0], args[1], 8, bits)
            value = args[2] if bits == 64 else builder.trunc(args[2], llvm.IntType(bits))
            instruction = builder.store(_swap(builder, value, bits), p, align=1)
            if space:
                _tag(builder.module, instruction, space)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.uint64), codegen

    return store


# phv, mem and frames by word; inp and out by big-endian integers of 1, 2, 4 and 8 bytes
get, put = _word_load("phv", types.uint64), _word_store("phv", types.uint64)
peek, poke = _word_load("mem", types.uint64), _word_store("mem", types.uint64)
at64, set64 = _word_load("frames", types.int64), _word_store("frames", types.int64)
in8, in16, in32, in64 = (_byte_load(b, "inp") for b in (8, 16, 32, 64))
out8, out16, out32, out64 = (_byte_store(b, "out") for b in (8, 16, 32, 64))
# for bytes that are read in one space and written in another
any8, set_any8 = _byte_load(8, None), _byte_store(8, None)


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def in_bits(inp, end, bit, width):  # type: ignore[no-untyped-def]
    """`width` <= 64 bits of a packet from bit number `bit`; bits at byte `end` and behind read as zero."""
    value = U64(0)
    for i in range(bit >> 3, (bit + width + 7) >> 3):
        byte = in8(inp, i) if i < end else U64(0)
        left = (i << 3) - bit  # where this byte's first bit stands in the result, counted from its top
        shift = width - left - 8
        if shift >= 64 or shift <= -8:
            continue
        value |= (byte << U64(shift)) if shift >= 0 else (byte >> U64(-shift))
    return value if width >= 64 else value & ((U64(1) << U64(width)) - U64(1))


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def out_bits(out, bit, width, value):  # type: ignore[no-untyped-def]
    """Writes `width` <= 64 bits at bit number `bit`; bits of the last byte behind them become zero."""
    done = 0
    while done < width:
        at = bit + done
        room = 8 - (at & 7)
        take = min(room, width - done)
        piece = (value >> U64(width - done - take)) & ((U64(1) << U64(take)) - U64(1))
        kept = U64(0)
        if at & 7:
            kept = any8(out, at >> 3) & (U64(0xFF) << U64(room))
        out8(out, at >> 3, kept | (piece << U64(room - take)))
        done += take


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def shl(value, amount):  # type: ignore[no-untyped-def]
    return value << amount if amount < U64(64) else U64(0)


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def shr(value, amount):  # type: ignore[no-untyped-def]
    return value >> amount if amount < U64(64) else U64(0)


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def sar(value, amount):  # type: ignore[no-untyped-def]
    """Arithmetic shift of a 64-bit two's complement value."""
    steps = amount if amount < U64(63) else U64(63)
    return U64(np.int64(value) >> np.int64(steps))


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def sext(value, width):  # type: ignore[no-untyped-def]
    """The two's complement value of the low `width` bits, 1 <= width <= 64."""
    top = U64(1) << U64(width - 1)
    low = value & (top | (top - U64(1)))
    return (low ^ top) - top


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def usat(value, width):  # type: ignore[no-untyped-def]
    """A signed 64-bit value cut to 0 .. 2**width - 1, width <= 62."""
    v, most = np.int64(value), np.int64((1 << width) - 1)
    return U64(0) if v < 0 else U64(most if v > most else v)


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def ssat(value, width):  # type: ignore[no-untyped-def]
    """A signed 64-bit value cut to the range of a `width`-bit two's complement number, width <= 62."""
    v, most = np.int64(value), np.int64((1 << (width - 1)) - 1)
    least = -most - 1
    return U64(least if v < least else (most if v > most else v))


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def div(a, b):  # type: ignore[no-untyped-def]
    """BMv2 aborts on a division by zero; here it yields zero."""
    return a // b if b != U64(0) else U64(0)


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def rem(a, b):  # type: ignore[no-untyped-def]
    return a % b if b != U64(0) else U64(0)


# ------------------------------------------------------------------------------- integers of several words
# at phv[a] .. phv[a + n - 1], most significant word first; two's complement where a sign matters


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def wide_extend(phv, a, m, to, n, fill):  # type: ignore[no-untyped-def]
    """Copies m words to n words: the low ones where n < m, else with `fill` (0 or all ones) in front."""
    for i in range(n):
        k = i - (n - m)
        put(phv, to + i, get(phv, a + k) if k >= 0 else fill)


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def wide_equal(phv, a, b, n):  # type: ignore[no-untyped-def]
    different = U64(0)
    for i in range(n):
        different |= get(phv, a + i) ^ get(phv, b + i)
    return different == U64(0)


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def wide_less(phv, a, b, n):  # type: ignore[no-untyped-def]
    """Signed comparison."""
    top = U64(1) << U64(63)
    x, y = get(phv, a) ^ top, get(phv, b) ^ top
    if x != y:
        return x < y
    for i in range(1, n):
        x, y = get(phv, a + i), get(phv, b + i)
        if x != y:
            return x < y
    return False


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def wide_shl(phv, a, n, amount, to):  # type: ignore[no-untyped-def]
    words, bits = np.int64(amount >> U64(6)), amount & U64(63)
    if amount >= U64(64 * n):
        words = n
    for i in range(n):
        k = i + words
        high = get(phv, a + k) if k < n else U64(0)
        low = get(phv, a + k + 1) if k + 1 < n else U64(0)
        put(phv, to + i, high if bits == U64(0) else (high << bits) | (low >> (U64(64) - bits)))


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def wide_shr(phv, a, n, amount, fill, to):  # type: ignore[no-untyped-def]
    """Shift to the right with `fill` (0 or all ones) moving in."""
    words, bits = np.int64(amount >> U64(6)), amount & U64(63)
    if amount >= U64(64 * n):
        words = n
    for i in range(n - 1, -1, -1):
        k = i - words
        low = get(phv, a + k) if k >= 0 else fill
        high = get(phv, a + k - 1) if k >= 1 else fill
        put(phv, to + i, low if bits == U64(0) else (low >> bits) | (high << (U64(64) - bits)))


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def wide_mul(phv, a, b, n, to):  # type: ignore[no-untyped-def]
    """Product modulo 2**(64 n), in halves of 32 bits."""
    half = U64(0xFFFFFFFF)
    for i in range(n):
        put(phv, to + i, U64(0))
    for i in range(2 * n):
        x = (get(phv, a + n - 1 - (i >> 1)) >> U64(32 * (i & 1))) & half
        carry = U64(0)
        for j in range(2 * n - i):
            y = (get(phv, b + n - 1 - (j >> 1)) >> U64(32 * (j & 1))) & half
            k = i + j
            word, shift = to + n - 1 - (k >> 1), U64(32 * (k & 1))
            old = get(phv, word)
            total = ((old >> shift) & half) + x * y + carry
            carry = total >> U64(32)
            put(phv, word, (old & ~(half << shift)) | ((total & half) << shift))


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def cell(index, size):  # type: ignore[no-untyped-def]
    """An array index as int64; `size`, a cell that nothing depends on, for every index out of range."""
    return np.int64(index) if index < U64(size) else np.int64(size)


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def saturated(phv, a, n):  # type: ignore[no-untyped-def]
    """An unsigned number of n words as one word, all ones where it does not fit."""
    for i in range(n - 1):
        if get(phv, a + i) != U64(0):
            return ~U64(0)
    return get(phv, a + n - 1)


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def count(mem, at, length):  # type: ignore[no-untyped-def]
    poke(mem, at, peek(mem, at) + U64(1))
    poke(mem, at + 1, peek(mem, at + 1) + length)


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def random_word(mem, at):  # type: ignore[no-untyped-def]
    """The next word of a splitmix64 sequence (Steele et al., OOPSLA 2014)."""
    state = peek(mem, at) + U64(0x9E3779B97F4A7C15)
    poke(mem, at, state)
    state = (state ^ (state >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> U64(27))) * U64(0x94D049BB133111EB)
    return state ^ (state >> U64(31))


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def copy_bytes(inp, start, out, to, n):  # type: ignore[no-untyped-def]
    for i in range(n):
        out8(out, to + i, in8(inp, start + i))


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def payload_sum(inp, start, end, odd):  # type: ignore[no-untyped-def]
    """The csum16 total of a payload that follows `odd` (0 or 1) bytes of a 16-bit word."""
    total = U64(0)
    i = start
    if odd and i < end:
        total += in8(inp, i)
        i += 1
    while i + 8 <= end:
        word = in64(inp, i)
        total += (word & U64(0xFFFFFFFF)) + (word >> U64(32))
        i += 8
    high = True
    while i < end:
        total += in8(inp, i) << U64(8 if high else 0)
        high = not high
        i += 1
    return total


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def clear(mem, at, n):  # type: ignore[no-untyped-def]
    for i in range(n):
        poke(mem, at + i, U64(0))
