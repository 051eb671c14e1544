"""At most one log line of a kind in an interval (``telemetry.failureLogInterval``), and how many were left out."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

KINDS_MAX: Final = 1_024
"""Kinds that are remembered; beyond it the oldest goes, and its next line is let through."""


class LogLimit:
    """Decides which lines are written. Any thread may ask.

    Attributes:
        interval: seconds between two lines of one kind; None and 0 let all of them through.

    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Let every line through until :attr:`interval` is set; *clock* is monotonic seconds."""
        self.interval: float | None = None
        self._clock = clock
        self._lock = threading.Lock()
        # By kind: when its last line was written, and how many have been left out since.
        self._last: dict[Hashable, tuple[float, int]] = {}

    def ask(self, kind: Hashable) -> int | None:
        """Return None if a line of *kind* is to be left out now, else how many were left out since the last one.

        A changed interval counts from the last line that was written while there was one.
        """
        interval = self.interval
        if not interval and not self._last:
            return 0
        now = self._clock()
        with self._lock:
            written, left_out = self._last.pop(kind, (0.0, -1))
            if interval and left_out >= 0 and now - written < interval:
                self._last[kind] = (written, left_out + 1)
                return None
            if interval:
                if len(self._last) >= KINDS_MAX:
                    del self._last[next(iter(self._last))]
                self._last[kind] = (now, 0)
        return max(left_out, 0)
