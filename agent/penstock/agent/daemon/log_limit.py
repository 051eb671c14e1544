"""Bounds on the log: what clients do and backends answer is told line by line, but not thousands of times a minute."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

# Of one sentence: so many lines at once, so many a second in the long run. All sources of a pod may come at once.
BURST = 256
PER_SECOND = 1.0
# Sentences that are told apart; they are ours, but those of libraries may be made of anything.
_MAX_SENTENCES = 512
LEFT_OUT = "left_out"
"""What a line says of those that were left out before it."""


class LogLimit:
    """A token bucket for each sentence; any thread.

    Args:
        clock: monotonic seconds.

    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # By sentence: the level of its bucket and when that was, and how many lines were left out.
        self._buckets: dict[str, tuple[float, float, int]] = {}

    def admit(self, sentence: str) -> int | None:
        """Return how many lines of *sentence* were left out since the last one; None if this one is left out, too."""
        now = self._clock()
        with self._lock:
            if sentence not in self._buckets and len(self._buckets) >= _MAX_SENTENCES:
                sentence = ""
            level, at, left_out = self._buckets.get(sentence, (float(BURST), now, 0))
            level = min(float(BURST), level + (now - at) * PER_SECOND)
            if level < 1.0:
                self._buckets[sentence] = level, now, left_out + 1
                return None
            self._buckets[sentence] = level - 1.0, now, 0
            return left_out

    def processor(
        self, _logger: object, _method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        """Limit structlog's lines."""
        left_out = self.admit(str(event.get("event", "")))
        if left_out is None:
            raise structlog.DropEvent
        if left_out:
            event[LEFT_OUT] = left_out
        return event

    def filter(self, record: logging.LogRecord) -> bool:
        """Limit the standard library's records, each by its text before anything is put into it."""
        left_out = self.admit(f"{record.name}: {record.msg}")
        if left_out is None:
            return False
        if left_out:
            record.msg = f"{record.getMessage()} ({left_out} like this were left out)"
            record.args = ()
        return True
