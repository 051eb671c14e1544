"""Notifications of peers, each shown to an observer just before vLLM handles it.

vLLM forgets a request with its last expected notification. Whether one comes too late is therefore known only when its turn
has come, not when a poll begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import guard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_GUARD = guard("nixl")


class WatchedMessages(list[bytes]):
    """The messages of one peer; *observe* is called with each when it is iterated over."""

    def __init__(self, messages: Iterable[bytes], observe: Callable[[bytes], None]) -> None:
        """Copy *messages*."""
        super().__init__(messages)
        self._observe = observe

    def __iter__(self) -> Iterator[bytes]:
        """Yield each message after it has been observed."""
        for message in super().__iter__():
            with _GUARD:
                self._observe(message)
            yield message


class WatchedQueue:
    """The queue of a push worker's forwarded messages; *observe* is called with each that is taken out of it."""

    def __init__(self, queue: Any, observe: Callable[[bytes], None]) -> None:
        """Stand in for *queue*."""
        self._queue = queue
        self._observe = observe

    def get_nowait(self) -> Any:
        """Return the next message, after it has been observed; raises as the queue does."""
        message = self._queue.get_nowait()
        with _GUARD:
            self._observe(message)
        return message

    def __getattr__(self, name: str) -> Any:
        """Return what the queue has."""
        return getattr(self._queue, name)
