"""Blocks of code in documents, and the commands with their output in those marked ``console``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PROMPT = "$ "
_FENCE = re.compile(r"^( *)```+ *(.*)$")


@dataclass(frozen=True)
class Block:
    """One block of code.

    Attributes:
        info: the words after the fence; none for an indented block.
        start: the index of its first line in the document.
        lines: without the fences, and without the indentation of the block.
        indented: whether four spaces mark it instead of a fence.

    """

    info: tuple[str, ...]
    start: int
    lines: tuple[str, ...]
    indent: str = ""
    indented: bool = False

    @property
    def language(self) -> str:
        """The first word of the fence."""
        return self.info[0] if self.info else ""


@dataclass
class Step:
    """A typed command and the output that the document shows; no output where it shows only the command."""

    typed: list[str]
    shown: list[str] = field(default_factory=list)

    @property
    def command(self) -> str:
        """The command line, continued lines joined."""
        return " ".join(line.removesuffix("\\").strip() for line in self.typed).removeprefix(PROMPT)


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a document: fenced ones, and those indented by four spaces after an empty line."""
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        if fence:
            indent, info = fence.groups()
            start = number = number + 1
            while number < len(lines) and lines[number].strip() != "```":
                number += 1
            body = [line.removeprefix(indent) for line in lines[start:number]]
            yield Block(tuple(info.split()), start, tuple(body), indent)
        elif _begins_indented(lines, number):
            start = number
            while number < len(lines) and (lines[number].startswith("    ") or not lines[number].strip()):
                number += 1
            body = [line[4:] for line in lines[start:number] if line.strip()]
            yield Block((), start, tuple(body), "    ", indented=True)
            continue
        number += 1


def _begins_indented(lines: Sequence[str], number: int) -> bool:
    """Tell an indented block from a continued item of a list."""
    if not lines[number].startswith("    ") or (number and lines[number - 1].strip()):
        return False
    before = next((line for line in reversed(lines[:number]) if line.strip()), "")
    return not re.match(r"\s*([-*]|\d+\.) |  ", before)


def steps(block: Block) -> list[Step]:
    """Return the commands of a ``console`` block."""
    found: list[Step] = []
    continued = False
    for line in block.lines:
        if continued:
            found[-1].typed.append(line)
        elif line.startswith(PROMPT):
            found.append(Step([line]))
        elif found:
            found[-1].shown.append(line)
        continued = (continued or line.startswith(PROMPT)) and line.endswith("\\")
    for step in found:
        while step.shown and not step.shown[-1].strip():
            step.shown.pop()
    return found


def rendered(found: Sequence[Step]) -> list[str]:
    """Return the lines of a block that has *found*."""
    return [line for step in found for line in (*step.typed, *step.shown)]
