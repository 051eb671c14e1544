"""A monotonic clock in seconds that only a test moves."""

from __future__ import annotations


class SecondsClock:
    """Call it to read it; set ``now`` to move it."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Read the clock."""
        return self.now
