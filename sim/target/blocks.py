"""Straight-line code before it becomes text: like statements folded into loops, loops over words fused.

A program with a register and a field per lane has hundreds of statements that differ only in addresses: as
loops they compile fast and LLVM vectorises them. A program with wide fields has chains of statements over the
same words; one pass over the words does them all without going through memory.

Addresses stand in the text as holes, `@17@`; one that advances by 32 in each turn of loop k is `@17~32~k@`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

_HOLE = re.compile(r"@(\d+)(?:~(-?\d+)~(\w+))?@")
_LOCAL = re.compile(r"\b([a-z])(\d+)\b")
_LONGEST_PERIOD = 24  # statements in one turn of a folded loop
_FEWEST_TURNS = 4


@dataclass(frozen=True)
class Text:
    """Lines of code that are left as they are."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """One wide statement: `store` with `{}` for the value of word i, and what its loop needs around it."""

    setup: tuple[str, ...]  # before the loop; reads nothing that a wide statement writes
    before: tuple[str, ...]  # carries; a loop with any runs from the last word to the first
    body: tuple[str, ...]
    store: str
    value: str
    place: str = ""  # text that reads the word back, for a store to the phv
    after: tuple[str, ...] = ()
    fusable: bool = True


@dataclass(frozen=True)
class Wide:
    """A loop over n words that executes its steps for each word."""

    n: int
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Roll:
    """`turns` repetitions of items whose holes advance with the loop variable `name`."""

    turns: int
    name: str
    items: tuple[Item, ...]


Item = Text | Wide | Roll


# ---------------------------------------------------------------------------------------------- holes


def _strings(item: Item) -> list[str]:
    if isinstance(item, Text):
        return list(item.lines)
    if isinstance(item, Wide):
        return [
            t for s in item.steps for t in (*s.setup, *s.before, *s.body, s.store, s.value, s.place, *s.after)
        ]
    return [t for i in item.items for t in _strings(i)]


def addresses(text: str) -> list[int]:
    return [int(m.group(1)) for m in _HOLE.finditer(text)]


def _shape(item: Item) -> str:
    """The item's text without its addresses; those that advance with an inner loop already are left in."""
    kind = f"{item.n} words" if isinstance(item, Wide) else type(item).__name__
    return "\n".join(
        [kind, *(_HOLE.sub(lambda m: m.group(0) if m.group(2) else "@@", t) for t in _strings(item))]
    )


def _holes(item: Item) -> list[int]:
    return [int(m.group(1)) for t in _strings(item) for m in _HOLE.finditer(t) if not m.group(2)]


def _advance(item: Item, steps: list[int], name: str) -> Item:
    """The item with each hole advancing by its entry of `steps` per turn."""
    left = iter(steps)

    def one(m: re.Match[str]) -> str:
        step = 0 if m.group(2) else next(left)
        return f"@{m.group(1)}~{step}~{name}@" if step else m.group(0)

    def text(t: str) -> str:
        return _HOLE.sub(one, t)

    if isinstance(item, Text):
        return Text(tuple(map(text, item.lines)))
    assert isinstance(item, Wide)
    return Wide(
        item.n,
        tuple(
            Step(
                tuple(map(text, s.setup)), tuple(map(text, s.before)), tuple(map(text, s.body)),
                text(s.store), text(s.value), text(s.place), tuple(map(text, s.after)), s.fusable,
            )
            for s in item.steps
        ),
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------- folding


def fold(items: Sequence[Item], depth: int = 0) -> list[Item]:
    """Repetitions with evenly advancing addresses, as loops."""
    shapes = [_shape(i) for i in items]
    holes = [_holes(i) for i in items]
    out: list[Item] = []
    at = 0
    while at < len(items):
        period, turns = _best_repetition(shapes, holes, at)
        if turns < _FEWEST_TURNS:
            out.append(items[at])
            at += 1
            continue
        name = f"k{depth}"
        body = []
        for j in range(period):
            steps = [b - a for a, b in zip(holes[at + j], holes[at + period + j], strict=True)]
            body.append(_advance(items[at + j], steps, name))
        out.append(Roll(turns, name, tuple(body)))
        at += period * turns
    return out


def _best_repetition(shapes: list[str], holes: list[list[int]], at: int) -> tuple[int, int]:
    """(statements in a turn, turns) of the repetition from `at` on that covers most."""
    best = (1, 1)
    for period in range(1, min(_LONGEST_PERIOD, (len(shapes) - at) // 2) + 1):
        if shapes[at + period] != shapes[at]:
            continue
        turns = 1
        while at + (turns + 1) * period <= len(shapes) and _continues(shapes, holes, at, period, turns):
            turns += 1
        if turns >= _FEWEST_TURNS and period * turns > best[0] * best[1]:
            best = (period, turns)
    return best


def _continues(shapes: list[str], holes: list[list[int]], at: int, period: int, turn: int) -> bool:
    for j in range(period):
        first, here = at + j, at + turn * period + j
        if shapes[first] != shapes[here]:
            return False
        second = at + period + j
        for a, b, c in zip(holes[first], holes[second], holes[here], strict=True):
            if c != a + turn * (b - a):
                return False
    return True


# ---------------------------------------------------------------------------------------------- fusing


def fuse(items: Sequence[Item]) -> list[Item]:
    """Neighbouring wide loops over the same number of words in one loop."""
    out: list[Item] = []
    for item in items:
        if isinstance(item, Roll):
            out.append(replace(item, items=tuple(fuse(item.items))))
            continue
        last = out[-1] if out else None
        if (
            isinstance(item, Wide)
            and isinstance(last, Wide)
            and last.n == item.n
            and all(s.fusable for s in (*last.steps, *item.steps))
        ):
            out[-1] = Wide(item.n, last.steps + item.steps)
            continue
        out.append(item)
    return out


def drop_dead_stores(items: Sequence[Item], dead: Sequence[tuple[int, int]]) -> list[Item]:
    """Removes stores to the (first word, words) ranges `dead`, which nobody reads after these items, where
    what reads remain within them have been served by the loop that stores."""
    items = [_serve(i) for i in items]
    for start, n in dead:
        if not any(start <= h < start + n for i in items for h in _read_holes(i)):
            items = [kept for i in items if (kept := _without_stores(i, start, n)) is not None]
    return items


def _serve(item: Item) -> Item:
    """Gives later steps of a loop the values that earlier ones stored, without going through memory."""
    if isinstance(item, Roll):
        return replace(item, items=tuple(_serve(i) for i in item.items))
    if not isinstance(item, Wide) or len(item.steps) < 2:
        return item
    names: dict[str, str] = {}  # setup text -> the variable that holds it
    served: dict[str, str] = {}  # place -> variable
    steps: list[Step] = []
    for k, step in enumerate(item.steps):
        local: dict[str, str] = {}
        setup: list[str] = []
        for line in step.setup:
            name, _, text = line.partition(" = ")
            text = _replaced(text, local)
            if text not in names:
                names[text] = f"{name}_{k}"
                setup.append(f"{names[text]} = {text}")
            local[name] = names[text]

        def rename(t: str, local: dict[str, str] = local, k: int = k) -> str:
            def one(m: re.Match[str]) -> str:
                if m.group(0) in local:
                    return local[m.group(0)]
                return f"{m.group(0)}_{k}" if m.group(1) in "cwxyz" else m.group(0)

            for place, variable in served.items():
                t = t.replace(place, variable)
            return _LOCAL.sub(one, t)

        before, body = tuple(map(rename, step.before)), tuple(map(rename, step.body))
        value, store = rename(step.value), rename(step.store)
        variable = f"v_{k}"
        after = tuple(map(rename, step.after))
        steps.append(
            Step(tuple(setup), before, (*body, f"{variable} = {value}"), store, variable, step.place, after)
        )
        if step.place:
            served[step.place] = variable
    return Wide(item.n, tuple(steps))


def _replaced(text: str, names: dict[str, str]) -> str:
    return _LOCAL.sub(lambda m: names.get(m.group(0), m.group(0)), text)


def _read_holes(item: Item) -> list[int]:
    """Addresses that an item reads (or passes to a function), every turn of a loop included."""
    if isinstance(item, Roll):
        return [h for i in item.items for h in _read_holes_of(i, item.turns)]
    return _read_holes_of(item, 1)


def _read_holes_of(item: Item, turns: int) -> list[int]:
    if isinstance(item, Wide):
        texts = [t for s in item.steps for t in (*s.setup, *s.before, *s.body, s.value, *s.after)]
        texts += [s.store for s in item.steps if not s.place]
    else:
        texts = _strings(item)
    out = []
    for t in texts:
        for m in _HOLE.finditer(t):
            base, step = int(m.group(1)), int(m.group(2) or 0)
            out += [base + step * k for k in range(turns if step else 1)]
    return out


def _without_stores(item: Item, start: int, n: int) -> Item | None:
    if isinstance(item, Roll):
        kept = tuple(k for i in item.items if (k := _without_stores(i, start, n)) is not None)
        return replace(item, items=kept) if kept else None
    if not isinstance(item, Wide):
        return item
    steps = []
    for s in item.steps:
        m = _HOLE.search(s.place)
        dead = m is not None and not m.group(2) and start <= int(m.group(1)) < start + n
        steps.append(replace(s, store="") if dead else s)
    return Wide(item.n, tuple(steps))


# ---------------------------------------------------------------------------------------------- text


def render(items: Sequence[Item]) -> list[str]:
    out: list[str] = []
    for item in items:
        if isinstance(item, Text):
            out += item.lines
        elif isinstance(item, Wide):
            out += _render_wide(item)
        else:
            flat = _flattened(item)
            if flat is not None:
                out += _render_wide(flat)
                continue
            before, body, after = _lifted(render(item.items), item)
            out += [*before, f"for {item.name} in range({item.turns}):"]
            out += ["    " + line for line in body]
            out += after
    return out


_FIXED_GET = re.compile(r"get\(phv, @(\d+)@\)")
_FIXED_PUT = re.compile(r"put\(phv, @(\d+)@, (.*)\)$")


def _lifted(lines: list[str], loop: Roll) -> tuple[list[str], list[str], list[str]]:
    """The lines before, in and behind a loop, with words of the phv that stay in place kept in variables.

    LLVM does not see that such a word lies apart from those that advance, and would neither take it out of
    the loop nor vectorise the loop. A word that each turn writes before it reads it is stored once, behind.
    """
    unchanged: tuple[list[str], list[str], list[str]] = ([], lines, [])
    advancing = re.compile(rf"(get|put)\(phv, @(\d+)~(-?\d+)~{loop.name}@(?=[,)])")
    moving: dict[str, set[int]] = {"get": set(), "put": set()}
    for line in lines:
        if "phv" in re.sub(r"put\(phv, @\d+@, ", "", _FIXED_GET.sub("", advancing.sub("", line))):
            return unchanged  # an address that the text does not tell
        if "return" in line:
            return unchanged
        for m in advancing.finditer(line):
            moving[m.group(1)].update(int(m.group(2)) + int(m.group(3)) * k for k in range(loop.turns))
    before, after = [], []
    for at in sorted({int(a) for line in lines for a in re.findall(r"phv, @(\d+)@", line)}):
        name, get, put = f"f{at}", f"get(phv, @{at}@)", f"put(phv, @{at}@, "
        first = next(line for line in lines if get in line or put in line)
        writes = [line for line in lines if put in line]
        if at in moving["put"]:
            continue
        if not writes:
            before.append(f"{name} = {get}")
        elif at in moving["get"] or get in first or not all(_FIXED_PUT.match(line) for line in writes):
            continue
        else:
            after.append(f"put(phv, @{at}@, {name})")
            lines = [f"{name} = {t[len(put) : -1]}" if t.startswith(put) else t for t in lines]
        lines = [line.replace(get, name) for line in lines]
    return before, lines, after


def _flattened(roll: Roll) -> Wide | None:
    """A loop of loops over words that follow each other in memory, as one loop."""
    if len(roll.items) != 1 or not isinstance(roll.items[0], Wide):
        return None
    wide = roll.items[0]
    if any(s.before or s.after for s in wide.steps):
        return None
    steps = []
    for s in wide.steps:
        if any(_HOLE.search(t) and "~" in t for t in s.setup):
            return None
        texts = []
        for t in (*s.body, s.store, s.value):
            for m in _HOLE.finditer(t):
                scale = 8 if t.startswith(" + 8 * i", m.end()) else 1 if t.startswith(" + i", m.end()) else 0
                if scale == 0 or int(m.group(2) or 0) != scale * wide.n:
                    return None
            if "[i]" in t:  # a constant's words repeat only within one turn
                return None
            texts.append(_HOLE.sub(lambda m: f"@{m.group(1)}@", t))
        steps.append(replace(s, body=tuple(texts[:-2]), store=texts[-2], value=texts[-1]))
    return Wide(wide.n * roll.turns, tuple(steps))


def _render_wide(item: Wide) -> list[str]:
    backwards = any(s.before for s in item.steps)
    lines = [t for s in item.steps for t in (*s.setup, *s.before)]
    body: list[str] = []
    for s in item.steps:
        body += s.body
        if s.store:
            body.append(s.store.replace("{}", s.value))
    if body:
        lines.append(f"for i in range({item.n - 1}, -1, -1):" if backwards else f"for i in range({item.n}):")
        lines += ["    " + line for line in body]
    return lines + [t for s in item.steps for t in s.after]


def fill(line: str) -> str:
    """The text with its holes filled."""

    def one(m: re.Match[str]) -> str:
        if m.group(2) is None:
            return m.group(1)
        return f"{m.group(1)} + {m.group(2)} * {m.group(3)}"

    return _HOLE.sub(one, line)
