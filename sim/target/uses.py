"""Which parts of a program use which fields."""

from __future__ import annotations

from switchreduce.sim.target import ir
from switchreduce.sim.target.ir import Field, Header, Stack

_SET_BY_THE_SWITCH = ("standard_metadata", "intrinsic_metadata", "queueing_metadata")


def local_fields(program: ir.Program) -> set[Field]:
    """Metadata fields whose every value is written and used up within one run of one action."""
    candidates = {
        f for h in program.headers if h.metadata and h.name not in _SET_BY_THE_SWITCH for f in h.fields
    }
    seen_elsewhere: set[Field] = set()

    def note(e: object) -> None:
        seen_elsewhere.update(fields_in(e))

    def follow(body: tuple[ir.Statement, ...], written: set[Field]) -> set[Field]:
        """Notes what is read before the body or `written` has written it; what is written after the body."""
        written = set(written)
        for s in body:
            if isinstance(s, ir.If):
                seen_elsewhere.update(fields_in(s.condition) - written)
                written = follow(s.then, written) & follow(s.otherwise, written)
            elif isinstance(s, (ir.Assign, ir.RegisterRead)) and isinstance(s.place, ir.Load):
                source = s.value if isinstance(s, ir.Assign) else s.index
                seen_elsewhere.update(fields_in(source) - written)
                written.add(s.place.field)
            else:
                seen_elsewhere.update(fields_in(s) - written)
        return written

    for state in program.states.values():
        note(state.ops)
        note(state.keys)
    for pipeline in (program.ingress, program.egress):
        for node in pipeline.nodes.values():
            if isinstance(node, ir.Conditional):
                note(node.condition)
            else:
                note([k.value for k in node.key])
    for c in program.checksums:
        note((c.condition, c.target, c.calculation))
    for fields in program.field_lists.values():
        seen_elsewhere.update(fields)
    for action in {a for t in program.tables for a in (*t.actions, t.default[0])}:
        follow(action.body, set())
    return candidates - seen_elsewhere


def fields_in(e: object) -> set[Field]:
    """Every field that an expression, statement or sequence of them mentions."""
    if isinstance(e, Field):
        return {e}
    if isinstance(e, Header):
        return set(e.fields)
    if isinstance(e, Stack):
        return {f for h in e.headers for f in h.fields}
    if isinstance(e, (list, tuple)):
        return set().union(*(fields_in(x) for x in e)) if e else set()
    if hasattr(e, "__dataclass_fields__"):
        return set().union(*(fields_in(getattr(e, name)) for name in e.__dataclass_fields__))
    return set()


def headers_set_by_parser(program: ir.Program) -> set[Header]:
    """Headers that parser states change other than by extracting them."""
    by_name = {h.name: h for h in program.headers}
    ops = [op for state in program.states.values() for op in state.ops]
    fields = fields_in([op.statement for op in ops if isinstance(op, ir.Execute)])
    return {by_name[f.header] for f in fields}
