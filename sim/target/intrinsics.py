"""Memory access for generated code, as LLVM instructions.

Memory is passed as addresses (int64). The address spaces never overlap: packet header vectors `phv` (words),
the switch's memory `mem` (words: registers, counters, tables), the packet that is read `inp`, the one that is
written `out` (bytes), and the batches' descriptions and queue `frames` (int64). Each access says which space
it belongs to; without that LLVM has to assume that all overlap and vectorises none of the wide loops.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir as llvm

from switchreduce.sim.target.native import I64, NONE, SIGNED, UNSIGNED, Intrinsic

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


def _word_load(space: str, kind: str) -> Intrinsic:
    def emit(builder: Any, base: Any, index: Any) -> Any:
        value = builder.load(_pointer(builder, base, index, 64, 64), align=8)
        _tag(builder.module, value, space)
        return value

    return Intrinsic((SIGNED, SIGNED), kind, emit)


def _word_store(space: str, kind: str) -> Intrinsic:
    def emit(builder: Any, base: Any, index: Any, value: Any) -> None:
        place = _pointer(builder, base, index, 64, 64)
        _tag(builder.module, builder.store(value, place, align=8), space)

    return Intrinsic((SIGNED, SIGNED, kind), NONE, emit)


def _swap(builder: Any, value: Any, bits: int) -> Any:
    return value if bits == 8 else builder.bswap(value)


def _byte_load(bits: int, space: str | None) -> Intrinsic:
    def emit(builder: Any, base: Any, index: Any) -> Any:
        value = builder.load(_pointer(builder, base, index, 8, bits), align=1)
        if space:
            _tag(builder.module, value, space)
        value = _swap(builder, value, bits)
        return value if bits == 64 else builder.zext(value, I64)

    return Intrinsic((SIGNED, SIGNED), UNSIGNED, emit)


def _byte_store(bits: int, space: str | None) -> Intrinsic:
    def emit(builder: Any, base: Any, index: Any, value: Any) -> None:
        place = _pointer(builder, base, index, 8, bits)
        cut = value if bits == 64 else builder.trunc(value, llvm.IntType(bits))
        instruction = builder.store(_swap(builder, cut, bits), place, align=1)
        if space:
            _tag(builder.module, instruction, space)

    return Intrinsic((SIGNED, SIGNED, UNSIGNED), NONE, emit)


# phv, mem and frames by word; inp and out by big-endian integers of 1, 2, 4 and 8 bytes; any8 and set_any8
# for bytes that are read in one space and written in another
INTRINSICS = {
    "get": _word_load("phv", UNSIGNED),
    "put": _word_store("phv", UNSIGNED),
    "peek": _word_load("mem", UNSIGNED),
    "poke": _word_store("mem", UNSIGNED),
    "at64": _word_load("frames", SIGNED),
    "set64": _word_store("frames", SIGNED),
    **{f"in{bits}": _byte_load(bits, "inp") for bits in (8, 16, 32, 64)},
    **{f"out{bits}": _byte_store(bits, "out") for bits in (8, 16, 32, 64)},
    "any8": _byte_load(8, None),
    "set_any8": _byte_store(8, None),
}
