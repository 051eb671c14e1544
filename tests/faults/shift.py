"""A wall clock that jumps, for a process of our own."""

from __future__ import annotations

import time

_NANO = 10**9


class WallClock:
    """Stands for ``time.time`` and ``time.time_ns``; the monotonic clock goes on, as it does in life."""

    def __init__(self) -> None:
        self._shift = 0
        self._now_ns = time.time_ns

    def install(self) -> None:
        """Take their place: before modules are imported that keep a reference."""
        time.time_ns = lambda: self._now_ns() + self._shift
        time.time = lambda: time.time_ns() / _NANO

    def move(self, seconds: float) -> None:
        """Set the clock forward, or back."""
        self._shift += round(seconds * _NANO)
