"""The deadline that all parts of a stop share."""

from __future__ import annotations

import time

_LEAST_SECONDS = 0.1


class DrainDeadline:
    """Seconds left for a stop; they run from :meth:`start` or the first question on."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._stop_at: float | None = None

    def start(self) -> float:
        """Start the clock if it does not run; return its end, of the monotonic clock."""
        if self._stop_at is None:
            self._stop_at = time.monotonic() + self._seconds
        return self._stop_at

    def remaining(self) -> float:
        """Return the seconds left, at least 0.1."""
        return max(_LEAST_SECONDS, self.start() - time.monotonic())
