"""Deletions that follow each other are one set. Pure."""

from __future__ import annotations

SETTLE_SECONDS = 0.5
LONGEST_SECONDS = 5.0


class Settling:
    """When a set without objects that were there is handed over: 0.5 s after the last deletion, 5 s after the first at most.

    All objects of a namespace, or of a definition, are deleted one by one; a loaded API server takes its time between them.

    Attributes:
        until: when it is handed over, in the seconds of the caller's clock; None while no object is gone.

    """

    def __init__(self) -> None:
        self.until: float | None = None
        self._first = 0.0

    def deleted(self, now: float) -> None:
        """Note a deletion."""
        if self.until is None:
            self._first = now
        self.until = min(now + SETTLE_SECONDS, self._first + LONGEST_SECONDS)

    def reset(self) -> None:
        """Forget the deletions: the set is handed over."""
        self.until = None
