"""What a bad disk does to a file: from a seed, so that a case can be done again."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_PAGE = 4096

FILES = ("journal.db", "journal.db", "journal.db-wal", "policy.db", "policy.db-wal", "policy-copy.db")
"""The journal's own file has twice the turns: it is most of what can be damaged."""


def _zero(path: Path, rng: random.Random, pages: int) -> None:
    with path.open("r+b") as file:
        for page in rng.sample(range(_pages(path)), min(pages, _pages(path))):
            file.seek(page * _PAGE)
            file.write(bytes(_PAGE))


def _flip(path: Path, rng: random.Random, bits: int) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(bits):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _cut(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def _swap(path: Path, rng: random.Random) -> None:
    """Two pages in each other's place: each is whole."""
    content = path.read_bytes()
    one, other = sorted(rng.choices(range(_pages(path)), k=2))
    pages = [content[at : at + _PAGE] for at in range(0, len(content), _PAGE)]
    pages[one], pages[other] = pages[other], pages[one]
    path.write_bytes(b"".join(pages))


def _pages(path: Path) -> int:
    return max(1, path.stat().st_size // _PAGE)


HARMS: dict[str, Callable[[Path, random.Random], None]] = {
    "one page zeroed": lambda path, rng: _zero(path, rng, 1),
    "five pages zeroed": lambda path, rng: _zero(path, rng, 5),
    "one bit flipped": lambda path, rng: _flip(path, rng, 1),
    "60 bits flipped": lambda path, rng: _flip(path, rng, 60),
    "200 bits flipped": lambda path, rng: _flip(path, rng, 200),
    "1,000 bits flipped": lambda path, rng: _flip(path, rng, 1_000),
    "cut": _cut,
    "two pages swapped": _swap,
}


@dataclass(frozen=True, slots=True)
class Case:
    """One thing done to one file of one left state; the same for the same seed.

    Attributes:
        ended: how the agent that left the state had ended: ``kill`` or ``terminate``.

    """

    seed: int
    ended: str
    file: str
    harm: str

    @classmethod
    def of(cls, seed: int) -> Case:
        """Return the case of a seed."""
        rng = random.Random(seed)
        return cls(
            seed, rng.choice(("kill", "kill", "terminate")), rng.choice(FILES), rng.choice(list(HARMS))
        )

    def do(self, state_dir: Path) -> bool:
        """Damage the file; False if there is none, or nothing in it."""
        path = state_dir / self.file
        if not path.exists() or not path.stat().st_size:
            return False
        HARMS[self.harm](path, random.Random(self.seed))
        return True
