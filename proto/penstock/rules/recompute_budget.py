"""The recompute budget: how many tokens may be computed again per second.

A token bucket (``kvLoadFailure.recomputeBudget.tokensPerSecond``). The arithmetic is exact: the level is kept in
tokens times nanoseconds, so that no rounding adds or loses a token.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Callable


class RecomputeBudget:
    """A token bucket, filled with *rate* tokens per second.

    Its capacity is what one second brings, and at least the largest request that the policy lets through
    (``maxRecomputeTokens``): otherwise a request of a permitted size could never pass. A rate of 0 has the capacity
    0: only a request that lost nothing passes. Over any span of *t* seconds at most ``capacity + rate * t`` tokens are acquired.

    Without a rate the budget is unlimited. Belongs to the thread that decides; every operation is O(1).
    """

    __slots__ = ("_capacity", "_clock", "_filled_at", "_level", "_rate")

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """Start unlimited; *clock* is monotonic, in nanoseconds."""
        self._clock = clock
        self._rate: int | None = None
        self._capacity = 0
        self._level = 0
        self._filled_at = clock()

    @property
    def rate(self) -> int | None:
        """Tokens per second, or None while the budget is unlimited."""
        return self._rate

    @property
    def capacity(self) -> int:
        """The largest number of tokens that can be acquired at once; 0 while the budget is unlimited."""
        return self._capacity

    def configure(self, rate: int | None, largest: int | None) -> None:
        """Change the limits of the running budget: *rate* in tokens per second, *largest* in tokens.

        A budget that was unlimited starts full. Otherwise the level stays (including what the old rate has
        added until now) and is cut to the new capacity, so that no change adds tokens.

        Raises:
            ValueError: a limit is negative.

        """
        if min(rate or 0, largest or 0) < 0:
            raise ValueError(
                f"a recompute budget cannot be negative: {rate} tokens/s, {largest} tokens at once"
            )
        was_unlimited = self._rate is None
        self._fill()
        self._rate = rate
        self._capacity = max(rate, largest or 0) if rate else 0
        full = self._capacity * NANOS
        self._level = full if was_unlimited else min(self._level, full)

    def available(self) -> int | None:
        """Tokens that can be acquired now; None while the budget is unlimited."""
        if self._rate is None:
            return None
        self._fill()
        return self._level // NANOS

    def wait_ns(self, tokens: int) -> int | None:
        """Return in how many nanoseconds *tokens* can be acquired, if nobody else does; None for never."""
        if self._rate is None:
            return 0
        if tokens > self._capacity:
            return None if tokens else 0
        self._fill()
        missing = max(tokens * NANOS - self._level, 0)
        return -(-missing // self._rate) if missing else 0

    def acquire(self, tokens: int) -> bool:
        """Acquire *tokens* if all of them are available; otherwise acquire none and return False."""
        if self._rate is None:
            return True
        self._fill()
        if tokens * NANOS > self._level:
            return False
        self._level -= tokens * NANOS
        return True

    def _fill(self) -> None:
        now = self._clock()
        if now > self._filled_at:
            brought = (now - self._filled_at) * (self._rate or 0)
            self._level = min(self._level + brought, self._capacity * NANOS)
            self._filled_at = now
