"""Who may come in: bounds on what clients can make the agent hold, whatever they name themselves."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.agent.errors import LimitError
from penstock.agent.ingest.pace import Bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.agent.model import EngineKey

MAX_STREAMS = 1_024
"""Sources that are connected. A pod has some hundred processes; each may have a message of 1 MiB in hand."""

MAX_ENGINES = 256
"""Engines that are told apart: each has series until it is retired."""

NEW_SOURCES_PER_SECOND = 4.0
NEW_SOURCES_BURST = 2_048
"""New epochs: each takes a row that outlives it. All processes of a node may start at once."""

# Memory is looked at so often, and after so many bytes of messages, which take some times as much.
_MEMORY_LOOK_SECONDS = 0.25
_MEMORY_LOOK_BYTES = 4 << 20
_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Return the memory that this process holds now; 0 where the system does not tell."""
    try:
        return int(_STATM.read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


def give_back() -> None:
    """Give memory that is free inside this process back to the system: by itself the allocator keeps it for long."""
    gc.collect()
    with suppress(OSError, AttributeError):  # glibc's; others give back by themselves
        ctypes.CDLL(None).malloc_trim(0)


class Admission:
    """Decides about each source that says hello, and about each message while memory is short.

    Args:
        known: engines that the log has named already.
        memory_limit: resident bytes above which nothing is taken in; 0 for none.
        clock: monotonic seconds.
        resident: returns the memory in use.
        relieve: called when that is above the limit, before it is looked at again.

    """

    def __init__(
        self,
        known: Iterable[EngineKey] = (),
        memory_limit: int = 0,
        clock: Callable[[], float] = time.monotonic,
        resident: Callable[[], int] = resident_bytes,
        relieve: Callable[[], None] = give_back,
    ) -> None:
        self._engines = set(known)
        self._memory_limit = memory_limit
        self._clock = clock
        self._resident = resident
        self._relieve = relieve
        self._sources = Bucket(NEW_SOURCES_PER_SECOND, NEW_SOURCES_BURST, clock)
        self._memory_at = clock() - _MEMORY_LOOK_SECONDS
        self._taken = 0
        self._short = ""

    def check_stream(self, connected: int) -> None:
        """Check whether one more stream may begin beside *connected* ones.

        Raises:
            LimitError: there are too many, or memory is short.

        """
        if connected >= MAX_STREAMS:
            raise LimitError(f"{MAX_STREAMS} sources are connected; try again later", "streams")
        self.check_memory()

    def check_source(self, key: EngineKey, *, new: bool) -> None:
        """Check a source that has said hello; *new* if its epoch has never been seen.

        Raises:
            LimitError: too many engines are known, or too many sources are new.

        """
        if key not in self._engines and len(self._engines) >= MAX_ENGINES:
            raise LimitError(
                f"{MAX_ENGINES} engines are known and {str(key)!r} is none of them; forget one that has gone "
                "(agentctl forget engine), or run another agent",
                "engines",
            )
        if new and not self._sources.try_take(1):
            raise LimitError(
                f"more than {NEW_SOURCES_PER_SECOND:g} new sources a second came; try again later", "sources"
            )
        self._engines.add(key)

    def forget(self, key: EngineKey) -> None:
        """Make room for another engine."""
        self._engines.discard(key)

    def check_memory(self, size: int = 0) -> None:
        """Check the memory in use before a message of *size* bytes is parsed; it is looked at now and then.

        Raises:
            LimitError: it is above the limit.

        """
        self._taken += size
        if self._memory_limit and self._looks_again():
            self._memory_at, self._taken = self._clock(), 0
            self._short = self._shortage()
        if self._short:
            raise LimitError(self._short, "memory")

    def _looks_again(self) -> bool:
        if self._taken >= _MEMORY_LOOK_BYTES and not self._short:
            return True
        return self._clock() - self._memory_at >= _MEMORY_LOOK_SECONDS

    def _shortage(self) -> str:
        if self._resident() <= self._memory_limit:
            return ""
        self._relieve()
        resident = self._resident()
        if resident <= self._memory_limit:
            return ""
        return f"the agent holds {resident >> 20} MiB, its limit is {self._memory_limit >> 20} MiB; try again later"
