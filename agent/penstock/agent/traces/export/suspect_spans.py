"""Spans that the backend has refused without saying whose fault it was, each by itself: the backend's trouble or theirs.

A server that is overloaded or about to restart answers 500 to everything, for minutes; one that stumbles over one span
answers the same, for ever. So a span is given up only when it is refused again and again while every other call between
is taken. One refusal of another call, and the counting begins anew; only when there are too many of them, and never one is
taken, the one that was refused most often goes without that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.traces.spans import Span

# So often in a row: refused, and the next other call taken.
STRIKES = 8
# As many as one call has; with more of them it is the backend that is not well.
MAX_SUSPECTS = 512
# Of all of them in a row, before one of too many is given up: a backend that takes one call in a hundred takes one of so many.
REFUSALS = 1024


@dataclass(slots=True, eq=False)
class Suspect:
    """One of them.

    Attributes:
        strikes: how often it was refused and another call after it was taken.
        refusals: how often it was refused in all.
        refused: it was refused since the last call that was taken.

    """

    span: Span
    error: str
    strikes: int = 0
    refusals: int = 1
    refused: bool = True


class Suspects:
    """Those that are set aside so that the others go on; pure, one thread."""

    def __init__(self) -> None:
        self._suspects: list[Suspect] = []
        # Refusals of all of them, since one was taken.
        self._row = 0

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._suspects)

    def __iter__(self) -> Iterator[Suspect]:
        """Iterate over them as they are now."""
        return iter(tuple(self._suspects))

    @property
    def room(self) -> int:
        """How many more can be set aside."""
        return MAX_SUSPECTS - len(self._suspects)

    def add(self, span: Span, error: str) -> None:
        """Set aside a span that was refused just now."""
        self._suspects.append(Suspect(span, error))

    def remove(self, suspect: Suspect) -> None:
        """Let go of one that was given up."""
        self._suspects.remove(suspect)

    def cleared(self, suspect: Suspect) -> None:
        """Let go of one that was taken after all: so may the others be."""
        self._suspects.remove(suspect)
        self._row = 0
        self.failed()

    def refused(self, suspect: Suspect, error: str) -> None:
        """Note that one was refused once more; it goes to the end of the line."""
        suspect.refused, suspect.error = True, error
        suspect.refusals += 1
        self._row += 1
        self._suspects.remove(suspect)
        self._suspects.append(suspect)

    def taken(self) -> list[Suspect]:
        """Note that a call of others was taken; returns those that are now to be given up."""
        for suspect in self._suspects:
            if suspect.refused:
                suspect.strikes, suspect.refused = suspect.strikes + 1, False
        return [suspect for suspect in self._suspects if suspect.strikes >= STRIKES]

    def worst(self) -> Suspect | None:
        """Return the one that was refused most often; None if one of all was taken after not so many refusals."""
        if self._row < REFUSALS:
            return None
        return max(self._suspects, key=lambda suspect: suspect.refusals, default=None)

    def failed(self) -> None:
        """Note that a call was not taken that may be taken: what was refused meanwhile proves nothing."""
        for suspect in self._suspects:
            suspect.strikes = 0

    def clear(self) -> None:
        """Forget them: they are read from the log again."""
        self._suspects.clear()
