"""Functions in a small subset of Python to machine code, by LLVM.

numba compiles the same text, but spends nine tenths of its time on the way from bytecode to LLVM's language,
which a subset with three types does not need: 15 s of CPU for the aggregation program, here 2 s (both on a
busy machine).

The subset: functions of `int64` and `uint64` numbers and booleans, compiled for the types that they are
called with; local variables of one type each (mixing types is an error); `U(x)`, `int64(x)`, `min`, `max`;
`if`, `while`, `for` over `range`, `break`, `continue`, `return`; module-level lists of uint64 constants; no
recursion. Overflow of an int64 is undefined, as in C, and so are shifts by 64 and more.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from llvmlite import binding
from llvmlite import ir as llvm

I1, I64 = llvm.IntType(1), llvm.IntType(64)
SIGNED, UNSIGNED, BOOL, NONE = "int64", "uint64", "bool", "nothing"
_CASTS = {"U": UNSIGNED, "uint64": UNSIGNED, "int64": SIGNED}
_COMPARISONS = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}


class Number(NamedTuple):
    """An LLVM value of one of the kinds above: i64, or i1 for BOOL."""

    value: Any
    kind: str


NOTHING = Number(None, NONE)


@dataclass(frozen=True)
class Intrinsic:
    """A function that LLVM instructions stand for: `emit(builder, *arguments)`."""

    parameters: tuple[str, ...]
    result: str
    emit: Callable[..., Any]


def compile_to_object(
    texts: Sequence[str], tables: Mapping[str, Sequence[int]], intrinsics: Mapping[str, Intrinsic],
    entry: str, parameters: Sequence[str],
) -> bytes:  # fmt: skip
    """An object file for this machine's processor with the function `entry` of the `texts`, whose parameters
    have the kinds `parameters`. `tables` are constants, as are lists that the texts assign to names."""
    unit = Unit(texts, tables, intrinsics)
    unit.instance(entry, tuple(parameters)).function.linkage = "external"
    machine = _target_machine()
    module = binding.parse_assembly(str(unit.module))
    module.verify()
    options = binding.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    passes = binding.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    object_file: bytes = machine.emit_object(module)
    return object_file


class Loaded:
    """An object file in memory, ready to run; the code lives as long as this."""

    def __init__(self, object_file: bytes):
        empty = binding.parse_assembly("")
        self._engine = binding.create_mcjit_compiler(empty, _target_machine())
        self._engine.add_object_file(binding.ObjectFileRef.from_data(object_file))
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        return int(self._engine.get_function_address(name))


def processor() -> str:
    """What machine code depends on besides its source."""
    features = binding.get_host_cpu_features().flatten()
    return f"{binding.llvm_version_info} {binding.get_host_cpu_name()} {features}"


def _target_machine() -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_default_triple()
    return target.create_target_machine(
        cpu=binding.get_host_cpu_name(),
        features=binding.get_host_cpu_features().flatten(),
        opt=3,
        reloc="static" if target.name.startswith("x86") else "default",
        jit=True,
    )


class Instance(NamedTuple):
    """A function compiled for one list of argument kinds."""

    function: Any
    result: str


class Unit:
    """An LLVM module that grows by each function that is asked for and those it calls."""

    def __init__(
        self, texts: Sequence[str], tables: Mapping[str, Sequence[int]], intrinsics: Mapping[str, Intrinsic]
    ):
        self.module = llvm.Module("program")
        self.module.triple = binding.get_process_triple()
        self.intrinsics = intrinsics
        self._definitions: dict[str, ast.FunctionDef] = {}
        self._instances: dict[tuple[str, tuple[str, ...]], Instance] = {}
        self._tables: dict[str, Any] = {name: self._table(name, values) for name, values in tables.items()}
        for text in texts:
            for node in ast.parse(text).body:
                if isinstance(node, ast.FunctionDef):
                    self._definitions[node.name] = node
                elif isinstance(node, ast.Assign) and isinstance(node.value, ast.List):
                    name = ast.unparse(node.targets[0])
                    self._tables[name] = self._table(name, ast.literal_eval(node.value))

    def _table(self, name: str, values: Sequence[int]) -> Any:
        kind = llvm.ArrayType(I64, len(values))
        table = llvm.GlobalVariable(self.module, kind, name)
        table.linkage = "internal"
        table.global_constant = True
        table.initializer = llvm.Constant(kind, [int(v) for v in values])
        return table

    def table(self, name: str) -> Any:
        return self._tables[name]

    def instance(self, name: str, kinds: tuple[str, ...]) -> Instance:
        if (name, kinds) not in self._instances:
            number = sum(n == name for n, _ in self._instances)
            definition = self._definitions[name]
            self._instances[name, kinds] = _Body(
                self, definition, kinds, f"{name}.{number}" if number else name
            ).run()
        return self._instances[name, kinds]


class _Body:
    """Compiles one function. Variables live on the stack until LLVM puts them into registers."""

    def __init__(self, unit: Unit, definition: ast.FunctionDef, kinds: tuple[str, ...], name: str):
        self.unit, self.definition, self.kinds = unit, definition, kinds
        returns = any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(definition))
        # a boolean result travels as 0 or 1
        type_ = llvm.FunctionType(I64 if returns else llvm.VoidType(), [_type(k) for k in kinds])
        self.function = llvm.Function(unit.module, type_, name)
        self.function.linkage = "internal"
        self.function.attributes.add("nounwind")
        self.result: str | None = None if returns else NONE
        self.builder = llvm.IRBuilder(self.function.append_basic_block("entry"))
        self.variables: dict[str, Number] = {}  # name -> (where it lies, kind)
        self.loops: list[tuple[Any, Any]] = []  # (where `continue` goes, where `break` goes)

    def run(self) -> Instance:
        for a, value, kind in zip(self.definition.args.args, self.function.args, self.kinds, strict=True):
            self._store(a.arg, Number(value, kind))
        self._statements(self.definition.body)
        if not self.builder.block.is_terminated:
            if self.result == NONE:
                self.builder.ret_void()
            else:
                self.builder.unreachable()
        assert self.result is not None
        return Instance(self.function, self.result)

    # ---------------------------------------------------------------------------------- statements

    def _statements(self, body: Sequence[ast.stmt]) -> None:
        for node in body:
            if self.builder.block.is_terminated:
                return
            getattr(self, f"_{type(node).__name__}")(node)

    def _Pass(self, node: ast.Pass) -> None:
        pass

    def _Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self._value(node.value)

    def _Assign(self, node: ast.Assign) -> None:
        (target,) = node.targets
        if isinstance(target, ast.Tuple):
            assert isinstance(node.value, ast.Tuple)
            values = [self._value(v) for v in node.value.elts]
            for each, value in zip(target.elts, values, strict=True):
                self._store(ast.unparse(each), value)
        else:
            self._store(ast.unparse(target), self._value(node.value))

    def _AugAssign(self, node: ast.AugAssign) -> None:
        name = ast.unparse(node.target)
        self._store(name, self._operation(node.op, self._load(name), self._value(node.value)))

    def _Return(self, node: ast.Return) -> None:
        if node.value is None:
            self.builder.ret_void()
            return
        result = self._value(node.value)
        if self.result not in (None, result.kind):
            raise TypeError(f"{self.definition.name} returns {self.result} and {result.kind}")
        self.result = result.kind
        self.builder.ret(self.builder.zext(result.value, I64) if result.kind == BOOL else result.value)

    def _If(self, node: ast.If) -> None:
        then, otherwise, after = (self.function.append_basic_block() for _ in range(3))
        self.builder.cbranch(self._condition(node.test), then, otherwise)
        for block, body in ((then, node.body), (otherwise, node.orelse)):
            self.builder.position_at_end(block)
            self._statements(body)
            self._go(after)
        self.builder.position_at_end(after)

    def _While(self, node: ast.While) -> None:
        test, body, after = (self.function.append_basic_block() for _ in range(3))
        self._go(test)
        self.builder.position_at_end(test)
        self.builder.cbranch(self._condition(node.test), body, after)
        self._loop(body, node.body, test, after)

    def _For(self, node: ast.For) -> None:
        assert isinstance(node.iter, ast.Call)
        limits = [self._of_kind(v, SIGNED) for v in node.iter.args]
        start = limits[0] if len(limits) > 1 else llvm.Constant(I64, 0)
        stop = limits[min(1, len(limits) - 1)]
        step = ast.literal_eval(node.iter.args[2]) if len(limits) > 2 else 1
        name = ast.unparse(node.target)
        turn = self._space(I64)
        self.builder.store(start, turn)
        test, body, following, after = (self.function.append_basic_block() for _ in range(4))
        self._go(test)
        self.builder.position_at_end(test)
        now = self.builder.load(turn)
        self.builder.cbranch(self.builder.icmp_signed("<" if step > 0 else ">", now, stop), body, after)
        self.builder.position_at_end(following)
        advanced = self.builder.add(self.builder.load(turn), llvm.Constant(I64, step), flags=["nsw"])
        self.builder.store(advanced, turn)
        self._go(test)
        self.builder.position_at_end(body)
        self._store(name, Number(now, SIGNED))
        self._loop(body, node.body, following, after)

    def _loop(self, block: Any, body: Sequence[ast.stmt], following: Any, after: Any) -> None:
        self.builder.position_at_end(block)
        self.loops.append((following, after))
        self._statements(body)
        self.loops.pop()
        self._go(following)
        self.builder.position_at_end(after)

    def _Break(self, node: ast.Break) -> None:
        self._go(self.loops[-1][1])

    def _Continue(self, node: ast.Continue) -> None:
        self._go(self.loops[-1][0])

    def _go(self, block: Any) -> None:
        if not self.builder.block.is_terminated:
            self.builder.branch(block)

    # ---------------------------------------------------------------------------------- variables

    def _space(self, type_: Any) -> Any:
        """On the stack, taken where the function starts: in a loop it would grow with each turn."""
        with self.builder.goto_entry_block():
            return self.builder.alloca(type_)

    def _store(self, name: str, number: Number) -> None:
        if name not in self.variables:
            self.variables[name] = Number(self._space(_type(number.kind)), number.kind)
        place = self.variables[name]
        if place.kind != number.kind:
            raise TypeError(f"{name} in {self.definition.name} is {place.kind} and {number.kind}")
        self.builder.store(number.value, place.value)

    def _load(self, name: str) -> Number:
        place = self.variables[name]
        return Number(self.builder.load(place.value), place.kind)

    # ---------------------------------------------------------------------------------- expressions

    def _value(self, node: ast.expr) -> Number:
        result: Number = getattr(self, f"_{type(node).__name__}")(node)
        return result

    def _of_kind(self, node: ast.expr, kind: str) -> Any:
        number = self._value(node)
        if number.kind != kind:
            raise TypeError(f"'{ast.unparse(node)}' in {self.definition.name} is {number.kind}, not {kind}")
        return number.value

    def _condition(self, node: ast.expr) -> Any:
        number = self._value(node)
        if number.kind == BOOL:
            return number.value
        return self.builder.icmp_unsigned("!=", number.value, llvm.Constant(I64, 0))

    def _Name(self, node: ast.Name) -> Number:
        return self._load(node.id)

    def _Constant(self, node: ast.Constant) -> Number:
        if isinstance(node.value, bool):
            return Number(llvm.Constant(I1, int(node.value)), BOOL)
        return Number(llvm.Constant(I64, node.value), SIGNED)

    def _Subscript(self, node: ast.Subscript) -> Number:
        table = self.unit.table(ast.unparse(node.value))
        place = self.builder.gep(table, [llvm.Constant(I64, 0), self._value(node.slice).value], inbounds=True)
        return Number(self.builder.load(place), UNSIGNED)

    def _UnaryOp(self, node: ast.UnaryOp) -> Number:
        if isinstance(node.op, ast.Not):
            return Number(self.builder.not_(self._condition(node.operand)), BOOL)
        number = self._value(node.operand)
        if isinstance(node.op, ast.Invert):
            return Number(self.builder.not_(number.value), number.kind)
        assert isinstance(node.op, ast.USub)
        return Number(self.builder.neg(number.value), number.kind)

    def _BinOp(self, node: ast.BinOp) -> Number:
        return self._operation(node.op, self._value(node.left), self._value(node.right))

    def _operation(self, op: ast.operator, a: Number, b: Number) -> Number:
        if a.kind != b.kind or a.kind == BOOL:
            raise TypeError(f"{type(op).__name__} of {a.kind} and {b.kind} in {self.definition.name}")
        x, y, build, signed = a.value, b.value, self.builder, a.kind == SIGNED
        flags = ["nsw"] if signed else []
        if isinstance(op, ast.Add):
            value = build.add(x, y, flags=flags)
        elif isinstance(op, ast.Sub):
            value = build.sub(x, y, flags=flags)
        elif isinstance(op, ast.Mult):
            value = build.mul(x, y, flags=flags)
        elif isinstance(op, ast.BitAnd):
            value = build.and_(x, y)
        elif isinstance(op, ast.BitOr):
            value = build.or_(x, y)
        elif isinstance(op, ast.BitXor):
            value = build.xor(x, y)
        elif isinstance(op, ast.LShift):
            value = build.shl(x, y)
        elif isinstance(op, ast.RShift):
            value = build.ashr(x, y) if signed else build.lshr(x, y)
        elif isinstance(op, ast.FloorDiv):
            value = self._floor(x, y)[0] if signed else build.udiv(x, y)
        else:
            assert isinstance(op, ast.Mod)
            value = self._floor(x, y)[1] if signed else build.urem(x, y)
        return Number(value, a.kind)

    def _floor(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Quotient and remainder as Python has them, rounded down."""
        build, zero = self.builder, llvm.Constant(I64, 0)
        quotient, rest = build.sdiv(x, y), build.srem(x, y)
        off = build.and_(
            build.icmp_signed("!=", rest, zero), build.icmp_signed("<", build.xor(rest, y), zero)
        )
        return (
            build.sub(quotient, build.zext(off, I64)),
            build.add(rest, build.select(off, y, zero)),
        )

    def _Compare(self, node: ast.Compare) -> Number:
        numbers = [self._value(n) for n in (node.left, *node.comparators)]
        result = None
        for op, a, b in zip(node.ops, numbers, numbers[1:], strict=False):
            if a.kind != b.kind:
                raise TypeError(f"'{ast.unparse(node)}' in {self.definition.name}: {a.kind} and {b.kind}")
            compare = self.builder.icmp_signed if a.kind == SIGNED else self.builder.icmp_unsigned
            holds = compare(_COMPARISONS[type(op)], a.value, b.value)
            result = holds if result is None else self.builder.and_(result, holds)
        return Number(result, BOOL)

    def _BoolOp(self, node: ast.BoolOp) -> Number:
        """What stands behind the first false (`and`) or true (`or`) part is not evaluated."""
        after = self.function.append_basic_block()
        ends = []
        for part in node.values:
            holds = self._condition(part)
            ends.append((holds, self.builder.block))
            if part is node.values[-1]:
                self.builder.branch(after)
                break
            following = self.function.append_basic_block()
            both = (following, after) if isinstance(node.op, ast.And) else (after, following)
            self.builder.cbranch(holds, *both)
            self.builder.position_at_end(following)
        self.builder.position_at_end(after)
        return Number(self._joined(I1, ends), BOOL)

    def _IfExp(self, node: ast.IfExp) -> Number:
        then, otherwise, after = (self.function.append_basic_block() for _ in range(3))
        self.builder.cbranch(self._condition(node.test), then, otherwise)
        ends, kinds = [], []
        for block, part in ((then, node.body), (otherwise, node.orelse)):
            self.builder.position_at_end(block)
            number = self._value(part)
            kinds.append(number.kind)
            ends.append((number.value, self.builder.block))
            self.builder.branch(after)
        if kinds[0] != kinds[1]:
            raise TypeError(f"'{ast.unparse(node)}' in {self.definition.name}: {kinds[0]} or {kinds[1]}")
        self.builder.position_at_end(after)
        return Number(self._joined(_type(kinds[0]), ends), kinds[0])

    def _joined(self, type_: Any, ends: list[tuple[Any, Any]]) -> Any:
        phi = self.builder.phi(type_)
        for value, block in ends:
            phi.add_incoming(value, block)
        return phi

    def _Call(self, node: ast.Call) -> Number:
        name = ast.unparse(node.func)
        if name in _CASTS:
            (argument,) = node.args
            if isinstance(argument, ast.Constant) and not isinstance(argument.value, bool):
                return Number(llvm.Constant(I64, argument.value), _CASTS[name])
            number = self._value(argument)
            value = self.builder.zext(number.value, I64) if number.kind == BOOL else number.value
            return Number(value, _CASTS[name])
        numbers = [self._value(a) for a in node.args]
        if name in ("min", "max"):
            a, b = numbers
            compare = self.builder.icmp_signed if a.kind == SIGNED else self.builder.icmp_unsigned
            first = compare("<=" if name == "min" else ">=", a.value, b.value)
            if a.kind != b.kind:
                raise TypeError(f"'{ast.unparse(node)}' in {self.definition.name}: {a.kind} and {b.kind}")
            return Number(self.builder.select(first, a.value, b.value), a.kind)
        kinds, values = tuple(n.kind for n in numbers), [n.value for n in numbers]
        if name in self.unit.intrinsics:
            intrinsic = self.unit.intrinsics[name]
            if kinds != intrinsic.parameters:
                raise TypeError(f"'{ast.unparse(node)}' in {self.definition.name} with {', '.join(kinds)}")
            return Number(intrinsic.emit(self.builder, *values), intrinsic.result)
        instance = self.unit.instance(name, kinds)
        value = self.builder.call(instance.function, values)
        if instance.result == BOOL:
            value = self.builder.trunc(value, I1)
        return Number(value, instance.result)


def _type(kind: str) -> Any:
    return I1 if kind == BOOL else I64
