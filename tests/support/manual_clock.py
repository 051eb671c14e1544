"""A monotonic clock that only a test moves."""

from __future__ import annotations

SECOND = 1_000_000_000


class ManualClock:
    """Counts nanoseconds; call it to read it."""

    def __init__(self) -> None:
        self.now = 1_000 * SECOND

    def __call__(self) -> int:
        """Read the clock."""
        return self.now

    def advance(self, seconds: float) -> int:
        """Move on and return the new time."""
        self.now += round(seconds * SECOND)
        return self.now
