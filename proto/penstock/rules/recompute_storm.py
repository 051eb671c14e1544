"""A storm of recomputation: requests queue because others are computed again (``reflexes.recomputeStorm``).

Times are nanoseconds of one clock, given by the caller. Belongs to one thread, and is bounded.
"""

from __future__ import annotations

from collections import deque
from statistics import median_low
from typing import Final

from penstock.proto.names import NANOS

_WINDOW_NS: Final = 10 * NANOS
# Between two changes of the limit.
_STEP_NS: Final = 5 * NANOS
# A limit that was not lowered again for so long is none.
_EXPIRY_NS: Final = 5 * 60 * NANOS
_LOWEST: Final = 8
_MOST_SAMPLES: Final = 256


class RecomputeStorm:
    """The most tokens that one request may have recomputed while the queue is longer than it may be.

    Half of the largest number of tokens that were recomputed lately, then a quarter, an eighth at least; one step at a time, back by
    the same steps once half of the requests have queued for less than half of what is allowed.
    """

    __slots__ = ("_changed_ns", "_divisor", "_largest", "_lowered_ns", "_queued", "_recomputed")

    def __init__(self) -> None:
        self._queued: deque[tuple[int, int]] = deque(maxlen=_MOST_SAMPLES)
        self._recomputed: deque[tuple[int, int]] = deque(maxlen=_MOST_SAMPLES)
        self._divisor = 1
        self._largest = 0
        self._changed_ns = self._lowered_ns = 0

    def on_queued(self, wait_ns: int, now: int) -> None:
        """Record how long a request waited for room."""
        self._queued.append((now, wait_ns))

    def on_recomputed(self, tokens: int, now: int) -> None:
        """Record that *tokens* of a request are computed again."""
        self._recomputed.append((now, tokens))

    def limit(self, queue_wait_ns: int, now: int) -> int | None:
        """Return the most tokens that are recomputed for one request now, where *queue_wait_ns* is allowed; None for any number."""
        queued = [wait for at, wait in self._queued if now - at <= _WINDOW_NS]
        recomputed = [tokens for at, tokens in self._recomputed if now - at <= _WINDOW_NS]
        wait = median_low(queued) if queued else 0
        if self._divisor > 1 and now - self._lowered_ns > _EXPIRY_NS:
            self._divisor = 1
        if self._divisor == 1 or now - self._changed_ns >= _STEP_NS:
            if wait > queue_wait_ns and recomputed:
                self._lower(recomputed, now)
            elif self._divisor > 1 and 2 * wait < queue_wait_ns:
                self._divisor //= 2
                self._changed_ns = now
        return self._largest // self._divisor if self._divisor > 1 else None

    def _lower(self, recomputed: list[int], now: int) -> None:
        if self._divisor == 1:
            self._largest = max(recomputed)
        self._divisor = min(2 * self._divisor, _LOWEST)
        self._changed_ns = self._lowered_ns = now
