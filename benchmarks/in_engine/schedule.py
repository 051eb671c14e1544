"""The schedule of an engine that runs with and without Penstock in turns, its records, and their comparison. Pure.

Two processes of the same program differ by some per cent for their whole life (memory layout, shared caches), and a machine's speed
drifts within seconds. So an engine is compared with itself a fraction of a second later. Time is divided into blocks; each eight are
*with, without, without, with, without, with, with, without*, which cancels linear and quadratic drift. Eight blocks are one
comparison; its 1.2 s with Penstock hold a batch, a snapshot and everything else that Penstock does once a second. The blocks without
Penstock of two comparisons, in the same order, show the noise.

Blocks are counted from the start of the system's monotonic clock, so all processes of a server switch at once without communication.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BLOCK_NS: Final = 300_000_000
"""Long against messages between two processes, short against the drift of the machine."""

_WITH: Final = (True, False, False, True, False, True, True, False)
_GROUP: Final = len(_WITH)
_LEAST, _MOST = 0.25, 2.5
"""Accepted lengths in blocks: on a busy machine a step may outlast its block; an idle engine's block is longer."""


def block_at(now_ns: int) -> int:
    """Return the number of the block at a time of the monotonic clock."""
    return now_ns // BLOCK_NS


def end_of(block: int) -> int:
    """Return the end of a block on the monotonic clock."""
    return (block + 1) * BLOCK_NS


def is_with(block: int) -> bool:
    """Return whether Penstock is on in a block."""
    return _WITH[block % _GROUP]


@dataclass(frozen=True, slots=True)
class Note:
    """What one process did in one block.

    Attributes:
        process: ``engine`` or ``api``.
        block: its number.
        on: whether Penstock was on.
        wall_ns, cpu_ns: how long it was, and the CPU time of all threads of the process in it.
        main_ns: CPU time of the engine's main thread.
        steps, tokens: what the engine did; 0 in the API process.
        told: finished requests reported to the agent since the process started.

    """

    process: str
    block: int
    on: bool
    wall_ns: int
    cpu_ns: int
    main_ns: int = 0
    steps: int = 0
    tokens: int = 0
    told: int = 0

    def line(self) -> str:
        """Return it as one line of a file."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def parse(cls, lines: Iterable[str]) -> list[Self]:
        """Read such lines; one that is still being written is left out."""
        return [cls(**json.loads(line)) for line in lines if line.endswith("}\n")]


@dataclass(frozen=True, slots=True)
class Work:
    """What a server did, in one block or in several."""

    tokens: int
    steps: int
    wall_ns: float
    cpu_ns: float
    main_ns: float

    @property
    def throughput(self) -> float:
        """Tokens a second."""
        return self.tokens / self.wall_ns * 1e9

    @property
    def cpu(self) -> float:
        """Microseconds of CPU of all of the server's processes for a token."""
        return self.cpu_ns / self.tokens / 1e3

    @property
    def main(self) -> float:
        """Microseconds of CPU of the engine's main thread for a step."""
        return self.main_ns / self.steps / 1e3

    @classmethod
    def sum(cls, several: Iterable[Work]) -> Work:
        """Return what was done in all."""
        found = list(several)
        return cls(
            sum(each.tokens for each in found),
            sum(each.steps for each in found),
            sum(each.wall_ns for each in found),
            sum(each.cpu_ns for each in found),
            sum(each.main_ns for each in found),
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was done with Penstock and without, in equal parts of the same time; or twice without."""

    mine: Work
    other: Work


def blocks(notes: Iterable[Note]) -> dict[int, Work]:
    """Return by number the blocks that both processes have noted and in which the engine was busy all the time."""
    engine: dict[int, Note] = {}
    api: dict[int, Note] = {}
    for note in notes:
        (engine if note.process == "engine" else api)[note.block] = note
    return {
        number: _together(engine[number], api[number])
        for number in engine.keys() & api.keys()
        if _counts(engine[number], api[number])
    }


def compared(found: dict[int, Work]) -> list[Comparison]:
    """Return each complete eight, in their order."""
    ours = [number for number, on in enumerate(_WITH) if on]
    theirs = [number for number, on in enumerate(_WITH) if not on]
    return _taken(found, _GROUP, ours, theirs)


def controls(found: dict[int, Work]) -> list[Comparison]:
    """Return the blocks without of each two eights, in the order of an eight: what differs here is the noise."""
    without = [number for number in range(2 * _GROUP) if not _WITH[number % _GROUP]]
    ours = [number for number, on in zip(without, _WITH, strict=True) if on]
    theirs = [number for number, on in zip(without, _WITH, strict=True) if not on]
    return _taken(found, 2 * _GROUP, ours, theirs)


def _counts(mine: Note, other: Note) -> bool:
    long_enough = all(_LEAST < each.wall_ns / BLOCK_NS < _MOST for each in (mine, other))
    return mine.on == other.on and mine.tokens > 0 and long_enough


def _together(mine: Note, other: Note) -> Work:
    # The block of the engine ends with a step, that of the API process by the clock.
    cpu = mine.cpu_ns + other.cpu_ns * mine.wall_ns / other.wall_ns
    return Work(mine.tokens, mine.steps, mine.wall_ns, cpu, mine.main_ns)


def _taken(
    found: dict[int, Work], length: int, ours: Sequence[int], theirs: Sequence[int]
) -> list[Comparison]:
    taken: list[Comparison] = []
    free = 0
    for start in sorted(number for number in found if number % _GROUP == 0):
        if start >= free and all(start + each in found for each in (*ours, *theirs)):
            free = start + length
            mine, other = ([found[start + each] for each in side] for side in (ours, theirs))
            taken.append(Comparison(Work.sum(mine), Work.sum(other)))
    return taken
