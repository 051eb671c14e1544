"""Aggregates sampled stacks by frame, file and thread. Pure.

A line of py-spy's ``raw`` format is ``thread (ID): NAME;frame;frame;… count``, the outermost frame first; a frame is ``function (file)``
or ``function (file:line)``. Without names of threads the first part is missing.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

_FRAME: Final = re.compile(r"(?P<name>.*) \((?P<file>[^():]*)(?::\d+)?\)")
_THREAD: Final = re.compile(r"thread \((?P<id>\d+)\)(: (?P<name>.*))?")
_PACKAGES: Final = "/site-packages/"


@dataclass(frozen=True, slots=True)
class Stack:
    """One stack and how often it was seen.

    Attributes:
        thread: its name.
        id: its id for the system, 0 if it is not there.
        frames: ``function (file)``, the outermost first.

    """

    thread: str
    id: int
    frames: Sequence[str]
    count: int


@dataclass(frozen=True, slots=True)
class Profile:
    """All stacks of a recording."""

    stacks: Sequence[Stack]

    @classmethod
    def parse(cls, raw: str) -> Self:
        """Read py-spy's raw format.

        Raises:
            ValueError: a line is none of it.

        """
        return cls([_stack(line) for line in raw.splitlines() if line.strip()])

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return sum(stack.count for stack in self.stacks)

    def own(self) -> Counter[str]:
        """Return the samples by the frame that was running."""
        found: Counter[str] = Counter()
        for stack in self.stacks:
            if stack.frames:
                found[stack.frames[-1]] += stack.count
        return found

    def within(self, part: str) -> Counter[str]:
        """Return the samples by the outermost frame whose file has *part* in it: what was entered there, with all that it calls."""
        found: Counter[str] = Counter()
        for stack in self.stacks:
            entered = next((frame for frame in stack.frames if part in frame), None)
            if entered is not None:
                found[entered] += stack.count
        return found

    def run_by(self, part: str) -> int:
        """Return the samples in which the running frame's file has *part* in it."""
        return sum(count for frame, count in self.own().items() if part in frame)

    def only(self, threads: tuple[str, ...]) -> Profile:
        """Return the stacks of threads whose name begins with one of *threads*."""
        return Profile([stack for stack in self.stacks if stack.thread.startswith(threads)])

    def without(self, threads: tuple[str, ...]) -> Profile:
        """Return the stacks of all other threads."""
        return Profile([stack for stack in self.stacks if not stack.thread.startswith(threads)])

    def names(self) -> dict[int, str]:
        """Return the names of the threads by their ids for the system."""
        return {stack.id: stack.thread for stack in self.stacks}

    def by_thread(self) -> Counter[str]:
        """Return the samples by thread."""
        found: Counter[str] = Counter()
        for stack in self.stacks:
            found[stack.thread] += stack.count
        return found


def _stack(line: str) -> Stack:
    text, _, count = line.rpartition(" ")
    if not count.isdecimal():
        raise ValueError(f"No line of py-spy's raw format: {line[:200]!r}")
    thread, number, frames = "", 0, []
    for part in text.split(";"):
        if named := _THREAD.fullmatch(part):
            thread, number = named["name"] or part, int(named["id"])
        elif found := _FRAME.fullmatch(part):
            frames.append(f"{found['name']} ({_short(found['file'])})")
        else:
            frames.append(part)
    return Stack(thread, number, frames, int(count))


def _short(file: str) -> str:
    """Return a file from its package on."""
    if _PACKAGES in file:
        return file.rpartition(_PACKAGES)[2]
    at = file.rfind("/penstock/")
    return file[at + 1 :] if at >= 0 else file.rpartition("/lib/")[2] or file


def top(found: Counter[str], samples: int, most: int) -> str:
    """Return the first *most* as lines with their share."""
    return "\n".join(f"{100 * count / samples:5.1f} %  {name}" for name, count in found.most_common(most))
