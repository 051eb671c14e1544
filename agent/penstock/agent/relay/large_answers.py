"""How much of agents' answers a relay has in memory at a time, whoever asks.

A relay's callers are many, and an agent may send 16 MiB to each. Bytes that wait to be read are bounded over all
callers; and of those whose answers are large, two at a time read, merge and send them.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

_MAX_CALLERS: Final = 2
# What is in no list of large ones: memory of the answers to one question.
_SMALL: Final = 8 << 20
# An answer of so many bytes, or less, always has room.
_ALWAYS: Final = 64 << 10
# Over all questions.
_MAX_WAITING: Final = 128 << 20
# An entry takes at most as much, and has at least two bytes; an answer has at most so many of them.
_ENTRY, _ENTRY_BYTES, _MAX_ENTRIES = 128, 2, 1 << 18


def weight(size: int) -> int:
    """Return how many bytes of memory an answer of *size* bytes may take."""
    return size + min(size // _ENTRY_BYTES, _MAX_ENTRIES) * _ENTRY


class Room:
    """Bytes of which there is so much; the loop's."""

    def __init__(self, most: int, always: int = _ALWAYS) -> None:
        """Begin empty; what has no more than *always* bytes has room in any case."""
        self._left = most
        self._always = always

    def take(self, size: int) -> bool:
        """Whether there is room for *size* bytes; they are taken."""
        if size > self._left and size > self._always:
            return False
        self._left -= size
        return True

    def give(self, size: int) -> None:
        """Give *size* bytes back."""
        self._left += size

    @contextmanager
    def share(self) -> Iterator[Callable[[int], bool]]:
        """Yield what takes as :meth:`take` does; all that it has taken is given back at the end, however that comes."""
        taken = 0

        def take(size: int) -> bool:
            nonlocal taken
            found = self.take(size)
            taken += size if found else 0
            return found

        try:
            yield take
        finally:
            self.give(taken)


class _Caller:
    """One call of the relay's service, or a question outside of calls.

    Attributes:
        users: the call itself, and its questions that are being read; the last one gives the turn back. A question may
            outlast its call, if another of the call has failed.
        taking: held while one of them waits for the turn, so that two do not take two.

    """

    def __init__(self) -> None:
        self.users = 0
        self.has_turn = False
        self.taking = asyncio.Lock()


class LargeAnswers:
    """Their turns, and the room of those that wait; the loop's.

    Attributes:
        waiting: room of bytes that are not read yet.

    """

    def __init__(self) -> None:
        """Begin without callers."""
        self.waiting = Room(_MAX_WAITING)
        self._turns = asyncio.Semaphore(_MAX_CALLERS)
        self._caller: ContextVar[_Caller | None] = ContextVar("caller", default=None)

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Keep the turn that a question of this task has until the call that asks it has ended."""
        caller = _Caller()
        token = self._caller.set(caller)
        try:
            with self._using(caller):
                yield
        finally:
            self._caller.reset(token)

    @asynccontextmanager
    async def reading(self, size: int) -> AsyncIterator[None]:
        """Wait for a turn to read answers that may take *size* bytes of memory; small ones need none."""
        if size <= _SMALL:
            yield
            return
        caller = self._caller.get() or _Caller()
        with self._using(caller):
            async with caller.taking:
                if not caller.has_turn:
                    await self._turns.acquire()
                    caller.has_turn = True
            yield

    @contextmanager
    def _using(self, caller: _Caller) -> Iterator[None]:
        caller.users += 1
        try:
            yield
        finally:
            caller.users -= 1
            if not caller.users and caller.has_turn:
                caller.has_turn = False
                self._turns.release()
