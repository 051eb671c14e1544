"""The logger of the engine side, a child of vLLM's: vLLM's handler writes its lines, with level, time and process.

It has no handler of its own and imports nothing of vLLM. Where vLLM has not configured its logging,
Python's own rules for a logger without handlers hold. :class:`LogLimit` admits at most one line of a kind in an interval
(``telemetry.failureLogInterval``).
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

logger: Final = logging.getLogger("vllm.penstock")


KINDS_MAX: Final = 1_024
"""Kinds that are remembered; beyond it the oldest is forgotten, and its next line is admitted."""


class LogLimit:
    """Decides which lines are written. Safe from any thread.

    Attributes:
        interval: seconds between two lines of one kind; None and 0 admit all of them.

    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Admit every line until :attr:`interval` is set; *clock* is monotonic seconds."""
        self.interval: float | None = None
        self._clock = clock
        self._lock = threading.Lock()
        # By kind: when its last line was written, and how many have been suppressed since.
        self._last: dict[Hashable, tuple[float, int]] = {}

    def admit(self, kind: Hashable) -> int | None:
        """Return how many lines of *kind* were suppressed since the last one; None if this one is suppressed too.

        A changed interval counts from the last line that was written while there was one.
        """
        interval = self.interval
        if not interval and not self._last:
            return 0
        now = self._clock()
        with self._lock:
            written, suppressed = self._last.pop(kind, (0.0, -1))
            if interval and suppressed >= 0 and now - written < interval:
                self._last[kind] = (written, suppressed + 1)
                return None
            if interval:
                if len(self._last) >= KINDS_MAX:
                    del self._last[next(iter(self._last))]
                self._last[kind] = (now, 0)
        return max(suppressed, 0)
