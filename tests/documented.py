"""Sessions in the documents, so that tests can run them as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

OPERATION = (Path(__file__).parents[1] / "docs" / "operation.md").read_text()
PROMPT = ">>> "


def session(containing: str) -> list[tuple[str, list[str]]]:
    """Commands, and the lines that each prints, of the one session in docs/operation.md with a text in it."""
    [text] = [block for block in re.findall(r"```\n(.*?)```", OPERATION, re.S) if containing in block]
    steps: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith(PROMPT):
            steps.append((line.removeprefix(PROMPT), []))
        elif steps:
            steps[-1][1].append(line)
    return steps


def shape(lines: list[str]) -> set[str]:
    """`lines` without their numbers and without what the document leaves out."""
    return {
        re.sub(r"\b(0x)?[0-9a-f]*\d[0-9a-f]*\b", "0", line).strip() for line in lines if "..." not in line
    }
