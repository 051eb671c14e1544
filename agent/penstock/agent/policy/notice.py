"""Telling others that something changed: by a call, or by a wait with a deadline. One loop."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Listeners:
    """Callbacks, called in the order in which they were added."""

    def __init__(self) -> None:
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._next = 0

    def add(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Add one; returns what takes it out again."""
        number = self._next
        self._next += 1
        self._callbacks[number] = callback
        return lambda: self._callbacks.pop(number, None) and None

    def call(self) -> None:
        """Call them all; they must not raise."""
        for callback in list(self._callbacks.values()):
            callback()


class Notice:
    """A version that others wait for to move. A waiter sees the newest, never each one.

    Attributes:
        waiting: how many wait now.

    """

    def __init__(self) -> None:
        self.version = 0
        self.waiting = 0
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Move the version and wake all waiters."""
        self.version += 1
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seen: int, seconds: float) -> int:
        """Return the version once it differs from *seen*, or after *seconds*."""
        if self.version == seen:
            self.waiting += 1
            try:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._event.wait(), max(seconds, 0.0))
            finally:
                self.waiting -= 1
        return self.version
