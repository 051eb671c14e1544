"""When an empty set may withdraw policies. Pure."""

from __future__ import annotations

SECOND_LOOK_SECONDS = 10.0


class SecondLook:
    """An empty set after a full one counts when a set at least 10 s later, of the same connection, is empty too."""

    def __init__(self) -> None:
        self._first: float | None = None

    def reset(self) -> None:
        """Forget the first look: a set was not empty, or the connection broke."""
        self._first = None

    def wait(self, now: float) -> float:
        """Return the seconds until the second look at an empty set; 0 if this is it. *now*: monotonic seconds."""
        if self._first is None:
            self._first = now
        left = self._first + SECOND_LOOK_SECONDS - now
        if left > 0:
            return left
        self._first = None
        return 0.0
