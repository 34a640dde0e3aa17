"""The checked program: what `load.py` makes of a BMv2 JSON file and what the generator reads.

Expressions have BMv2's meaning: unbounded signed integers, cut to a field's width only when they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from switchreduce.errors import UnsupportedProgramError

MAX_FIELD_BITS = 2048  # p4c's own limit on a field's width
VARBIT_MAX_BYTES = 256


def unsupported(construct: str) -> UnsupportedProgramError:
    """The error for a construct outside the subset; the program has to be changed or run on BMv2."""
    return UnsupportedProgramError(
        f"the embedded switch does not support {construct}; run this program on BMv2"
    )


# ---------------------------------------------------------------------------------------------- data


@dataclass(eq=False)
class Field:
    """A field of a header instance. `bit_offset` counts from the header's first bit on the wire."""

    header: str
    name: str
    width: int
    signed: bool
    index: int
    bit_offset: int
    varbit: bool = False

    def __str__(self) -> str:
        return f"{self.header}.{self.name}"


@dataclass(eq=False)
class Header:
    """A header or metadata instance; `stack` is set for the elements of a header stack."""

    name: str
    type_name: str
    ident: int
    metadata: bool
    fields: list[Field]
    stack: Stack | None = None
    position: int = 0

    def field(self, name: str) -> Field | None:
        return next((f for f in self.fields if f.name == name), None)

    @property
    def bits(self) -> int:
        """Width on the wire, a variable-length field counted as empty."""
        return sum(f.width for f in self.fields if not f.varbit)

    @property
    def varbit(self) -> Field | None:
        return next((f for f in self.fields if f.varbit), None)


@dataclass(eq=False)
class Stack:
    name: str
    headers: list[Header] = field(default_factory=list)


@dataclass(eq=False)
class Register:
    name: str
    size: int
    width: int


@dataclass(eq=False)
class CounterArray:
    name: str
    size: int


# ---------------------------------------------------------------------------------------------- expressions


@dataclass(frozen=True)
class Const:
    value: int


@dataclass(frozen=True)
class Bool:
    value: bool


@dataclass(frozen=True)
class Load:
    field: Field


@dataclass(frozen=True)
class LoadLast:
    """A field of the last header that was put on a stack."""

    stack: Stack
    index: int


@dataclass(frozen=True)
class LoadAt:
    """A field of a stack's element whose number is known at run time only."""

    stack: Stack
    position: Expr
    index: int


@dataclass(frozen=True)
class Param:
    """Action data, word `offset` onwards."""

    number: int
    width: int


@dataclass(frozen=True)
class Valid:
    header: Header


@dataclass(frozen=True)
class ValidAt:
    stack: Stack
    position: Expr


@dataclass(frozen=True)
class StackCount:
    """The number of headers that were put on a stack (`size_stack`)."""

    stack: Stack


@dataclass(frozen=True)
class Lookahead:
    """Packet bits after the parser's cursor; bits behind the packet's end read as zero."""

    bit_offset: int
    width: int


@dataclass(frozen=True)
class Op:
    """`op` is BMv2's name for the operation; a ternary `?` has the arguments condition, left, right."""

    op: str
    args: tuple[Expr, ...]


@dataclass(frozen=True)
class Computed:
    """A value that the generated code holds already: the text of its words, most significant first."""

    width: int
    words: tuple[str, ...]


Expr = (
    Const | Bool | Load | LoadLast | LoadAt | Param | Valid | ValidAt | StackCount | Lookahead | Op | Computed
)
Place = Load | LoadLast | LoadAt

BOOLEAN_OPS = frozenset(["and", "or", "not", "==", "!=", "<", "<=", ">", ">=", "d2b"])


def is_boolean(e: Expr) -> bool:
    if isinstance(e, Op):
        return e.op in BOOLEAN_OPS or (e.op == "?" and is_boolean(e.args[1]))
    return isinstance(e, (Bool, Valid, ValidAt))


# ---------------------------------------------------------------------------------------------- statements


@dataclass(frozen=True)
class Assign:
    place: Place
    value: Expr


@dataclass(frozen=True)
class AssignHeader:
    """Copies validity and, from a valid source, the fields."""

    target: Header
    source: Header


@dataclass(frozen=True)
class AssignHeaderAt:
    """The same where a side, a header or (stack, position), is known at run time only."""

    target: Header | tuple[Stack, Expr]
    source: Header | tuple[Stack, Expr]


@dataclass(frozen=True)
class AssignStack:
    target: Stack
    source: Stack


@dataclass(frozen=True)
class SetValid:
    header: Header
    valid: bool


@dataclass(frozen=True)
class SetValidAt:
    stack: Stack
    position: Expr
    valid: bool


@dataclass(frozen=True)
class Shift:
    """`push` moves a stack's elements towards its end, `pop` towards its front."""

    stack: Stack
    count: int
    push: bool


@dataclass(frozen=True)
class RegisterRead:
    place: Place
    register: Register
    index: Expr


@dataclass(frozen=True)
class RegisterWrite:
    register: Register
    index: Expr
    value: Expr


@dataclass(frozen=True)
class Count:
    counter: CounterArray
    index: Expr


@dataclass(frozen=True)
class HashInto:
    """place = base + hash(calculation) % max, `max` 0 counting as 1."""

    place: Place
    base: Expr
    calculation: Calculation
    max: Expr


@dataclass(frozen=True)
class Random:
    place: Place
    low: Expr
    high: Expr


@dataclass(frozen=True)
class MarkToDrop:
    pass


@dataclass(frozen=True)
class Clone:
    session: Expr
    field_list: Expr


@dataclass(frozen=True)
class Again:
    """`kind` is `resubmit` or `recirculate`."""

    kind: str
    field_list: Expr


@dataclass(frozen=True)
class Truncate:
    length: Expr


@dataclass(frozen=True)
class Exit:
    pass


@dataclass(frozen=True)
class If:
    condition: Expr
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]


Statement = (
    Assign
    | AssignHeader
    | AssignHeaderAt
    | AssignStack
    | SetValid
    | SetValidAt
    | Shift
    | RegisterRead
    | RegisterWrite
    | Count
    | HashInto
    | Random
    | MarkToDrop
    | Clone
    | Again
    | Truncate
    | Exit
    | If
)


@dataclass(frozen=True)
class Calculation:
    """Input of a hash or checksum: fields, headers and (value, width) constants, then perhaps the payload."""

    name: str
    algorithm: str
    inputs: tuple[Field | Header | tuple[int, int], ...]
    payload: bool


@dataclass(frozen=True)
class Checksum:
    name: str
    target: Field
    calculation: Calculation
    verify: bool
    update: bool
    condition: Expr | None


# ---------------------------------------------------------------------------------------------- parser


@dataclass(frozen=True)
class Extract:
    header: Header
    varbit_bits: Expr | None = None


@dataclass(frozen=True)
class ExtractNext:
    stack: Stack
    varbit_bits: Expr | None = None


@dataclass(frozen=True)
class Verify:
    condition: Expr
    error: Expr


@dataclass(frozen=True)
class Advance:
    bits: Expr


@dataclass(frozen=True)
class Execute:
    statement: Statement


ParserOp = Extract | ExtractNext | Verify | Advance | Execute


@dataclass(frozen=True)
class Transition:
    """Taken when every key's bits under `mask` equal `value`; `mask` None compares all bits."""

    value: int
    mask: int | None
    next_state: str | None


@dataclass
class ParserState:
    name: str
    ops: list[ParserOp]
    keys: list[tuple[Expr, int]]  # (expression, width in bits)
    transitions: list[Transition]
    default: str | None


# ---------------------------------------------------------------------------------------------- control


@dataclass(eq=False)
class Action:
    name: str
    ident: int
    params: list[tuple[str, int]]
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class KeyField:
    """`kind` is exact, lpm, ternary or range."""

    name: str
    kind: str
    width: int
    value: Expr


@dataclass
class ConstEntry:
    key: list[tuple[int, int]]  # (value, prefix length | mask | high end; unused for exact)
    action: Action
    params: tuple[int, ...]
    priority: int  # BMv2's: the smallest wins


@dataclass(eq=False)
class Table:
    name: str
    kind: str
    key: list[KeyField]
    actions: list[Action]
    max_size: int
    direct_counter: str | None
    default: tuple[Action, tuple[int, ...]]
    default_is_const: bool
    const_entries: list[ConstEntry]
    next_by_action: dict[int, str | None]  # action ident -> node
    next_hit: str | None
    next_miss: str | None
    by_hit: bool

    @property
    def numbered_actions(self) -> list[Action]:
        """The actions in the order of the numbers that entries hold; the default one may not be listed."""
        listed = any(a.ident == self.default[0].ident for a in self.actions)
        return self.actions if listed else [*self.actions, self.default[0]]


@dataclass(eq=False)
class Conditional:
    name: str
    condition: Expr
    if_true: str | None
    if_false: str | None


Node = Table | Conditional


@dataclass
class Pipeline:
    name: str
    start: str | None
    nodes: dict[str, Node]


@dataclass
class Program:
    """One compiled program, every construct checked."""

    headers: list[Header]
    stacks: list[Stack]
    registers: list[Register]
    counters: list[CounterArray]
    errors: dict[str, int]
    field_lists: dict[int, list[Field]]
    states: dict[str, ParserState]
    start_state: str | None
    ingress: Pipeline
    egress: Pipeline
    deparse_order: list[Header]
    checksums: list[Checksum]
    aliases: dict[str, Field]
    digest: str  # sha256 of the JSON text without its source positions

    def standard(self, name: str) -> Field | None:
        """A field that BMv2 itself sets or reads, by the name that BMv2 knows it under."""
        if name in self.aliases:
            return self.aliases[name]
        header, _, member = name.partition(".")
        found = next((h for h in self.headers if h.name == header), None)
        return found.field(member) if found else None

    @property
    def tables(self) -> list[Table]:
        nodes = [*self.ingress.nodes.values(), *self.egress.nodes.values()]
        return [n for n in nodes if isinstance(n, Table)]
