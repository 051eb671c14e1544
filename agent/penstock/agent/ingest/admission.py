"""Admission: limits on what clients can make the agent hold, and of sources, whose engine no other process holds."""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.agent.aio import TokenBucket
from penstock.agent.errors import HeldError, LimitError
from penstock.agent.model import AGENT_PROCESS
from penstock.agent.server.full_collections import collect_everything
from penstock.agent.sources import EngineOwners
from penstock.proto.names import ENGINE_CORE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from penstock.agent.model import EngineKey, Source
    from penstock.agent.sources import Ownership

MAX_STREAMS = 1_024
"""Connected sources, at most. A pod has some hundred processes; each may have a message of 1 MiB in processing."""

MAX_ENGINES = 256
"""Engines that are connected or that the log has named and not forgotten: each has series until it is retired."""

# New epochs: each takes a row that outlives it, as long as its Hello, and counts as one of this length at least. All
# processes of a node may start at once. What an engine has of its own, apart for its EngineCore and for its other
# processes, is there whatever others take; beyond it all share.
_LEAST_BYTES = 2 << 10
SHARED_BYTES_PER_SECOND, SHARED_BURST_BYTES = 32 << 10, 8 << 20
OWN_BYTES_PER_SECOND, OWN_BURST_BYTES = 1 << 10, 16 << 10
_MAX_OWN = 2 * MAX_ENGINES

# Memory is looked at every so many seconds, and after so many bytes of messages, which take some times as much.
_MEMORY_LOOK_SECONDS = 0.25
_MEMORY_LOOK_BYTES = 4 << 20
# What relieves it looks at every object, on the loop: when the limit is crossed, and while memory is short now and then,
# for what has been forgotten meanwhile.
_CROSSING_SECONDS, _RELIEF_SECONDS = 2.0, 30.0
# Above what is held: for messages that are being processed.
_ROOM_BYTES = 64 << 20
_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes; 0 if the system does not report it."""
    try:
        return int(_STATM.read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


def give_back() -> None:
    """Return free memory of this process to the system; the allocator would keep it."""
    collect_everything()
    with suppress(OSError, AttributeError):  # glibc's; others give back by themselves
        ctypes.CDLL(None).malloc_trim(0)


class Admission:
    """Decides about each source that says hello, and about each message while memory is short.

    Args:
        known: returns the engines that are connected, or that the log has named.
        memory_limit: resident bytes above which nothing is taken in; 0 for none.
        clock: monotonic seconds.
        resident: returns the memory in use.
        relieve: called when that is above the limit, before it is looked at again.

    Attributes:
        shortage: why nothing is taken in, for who runs the agent; empty while it is.

    """

    def __init__(
        self,
        known: Callable[[], Collection[EngineKey]] = tuple,
        memory_limit: int = 0,
        clock: Callable[[], float] = time.monotonic,
        resident: Callable[[], int] = resident_bytes,
        relieve: Callable[[], None] = give_back,
    ) -> None:
        self._known = known
        self._memory_limit = memory_limit
        self._clock = clock
        self._resident = resident
        self._relieve = relieve
        self._shared = TokenBucket(SHARED_BYTES_PER_SECOND, SHARED_BURST_BYTES, clock)
        # By engine and whether it is for its EngineCore.
        self._own: dict[tuple[EngineKey, bool], TokenBucket] = {}
        self._memory_at = clock() - _MEMORY_LOOK_SECONDS
        self._relieved_at = clock() - _RELIEF_SECONDS
        self._taken = 0
        self._short = ""
        self.shortage = ""

    def check_stream(self, connected: int) -> None:
        """Check whether one more stream may begin beside *connected* ones.

        Raises:
            LimitError: there are too many, or memory is short.

        """
        if connected >= MAX_STREAMS:
            raise LimitError(f"{MAX_STREAMS} sources are connected; retry later", "streams")
        self.check_memory()

    def check_source(self, key: EngineKey, *, core: bool, new_bytes: int) -> None:
        """Check a source after its Hello.

        Args:
            key: of its engine.
            core: it is the EngineCore.
            new_bytes: length of its Hello if its epoch has never been seen, else 0.

        Raises:
            LimitError: too many engines are known, or too many sources are new.

        """
        engines = self._known()
        if key not in engines and len(engines) >= MAX_ENGINES:
            raise LimitError(
                f"{MAX_ENGINES} engines are known and {str(key)!r} is none of them; forget one that has gone "
                "(agentctl forget engine), or run another agent",
                "engines",
            )
        if new_bytes:
            size = max(new_bytes, _LEAST_BYTES)
            own = self._own_bucket(key, core=core)
            if not (own is not None and own.try_take(size)) and not self._shared.try_take(size):
                raise LimitError(
                    f"too many processes are new, of engine {str(key)!r} and in all; retry later",
                    "sources",
                )

    def _own_bucket(self, key: EngineKey, *, core: bool) -> TokenBucket | None:
        """Return what the engine has of its own; None while too many others use theirs."""
        bucket = self._own.get((key, core))
        if bucket is None:
            if len(self._own) >= _MAX_OWN:
                # One that is full again is as good as none.
                self._own = {each: own for each, own in self._own.items() if not own.full}
            if len(self._own) >= _MAX_OWN:
                return None
            bucket = self._own[key, core] = TokenBucket(OWN_BYTES_PER_SECOND, OWN_BURST_BYTES, self._clock)
        return bucket

    def check_memory(self, size: int = 0) -> None:
        """Check the memory in use before a message of *size* bytes is parsed; it is measured now and then.

        Raises:
            LimitError: it is above the limit.

        """
        self._taken += size
        self.look_at_memory()
        if self._short:
            raise LimitError(self._short, "memory")

    def look_at_memory(self) -> str:
        """Measure, also where no engine asks; return :attr:`shortage`. At most as often as for messages."""
        if self._memory_limit and self._is_due():
            self._memory_at, self._taken = self._clock(), 0
            self._look_at_memory()
        return self.shortage

    def _is_due(self) -> bool:
        if self._taken >= _MEMORY_LOOK_BYTES and not self._short:
            return True
        return self._clock() - self._memory_at >= _MEMORY_LOOK_SECONDS

    def _look_at_memory(self) -> None:
        was_short, self._short, self.shortage = bool(self._short), "", ""
        resident = self._resident()
        if resident <= self._memory_limit:
            return
        pause = _RELIEF_SECONDS if was_short else _CROSSING_SECONDS
        if self._clock() - self._relieved_at >= pause:
            self._relieve()
            self._relieved_at, resident = self._clock(), self._resident()
            if resident <= self._memory_limit:
                return
        holds, limit = resident >> 20, self._memory_limit >> 20
        self._short = f"the agent holds {holds} MiB, its limit is {limit} MiB; retry later"
        self.shortage = (
            f"the agent holds {holds} MiB and --memory-limit is {limit} MiB: it takes nothing from engines; "
            f"give it {_enough(resident) >> 20}MiB or more"
        )


def _enough(resident: int) -> int:
    """Return a limit with room for messages above *resident* bytes."""
    return -(-(resident + _ROOM_BYTES) // _ROOM_BYTES) * _ROOM_BYTES


class SourceAdmission:
    """Checks each source after its Hello.

    Args:
        stored: returns the source of an epoch that the journal knows, None if it does not.
        owners: which process speaks for each engine; shared with the policy feed.
        admission: bounds on what clients can make the agent hold.

    """

    def __init__(
        self,
        stored: Callable[[int], Source | None] = lambda _: None,
        owners: EngineOwners | None = None,
        admission: Admission | None = None,
    ) -> None:
        self._stored = stored
        self._owners = owners or EngineOwners()
        self.admission = admission or Admission()

    def admit(
        self, source: Source, live: Source | None, size: int, oust: Callable[[], None]
    ) -> Ownership | None:
        """Admit *source*, whose Hello came in a message of *size* bytes.

        Args:
            live: the source of the same epoch that is or was connected in this life of the agent.
            oust: ends its stream, when the engine's earlier holder comes back.

        Returns:
            What is to be given to :meth:`leave`; None if it is no EngineCore.

        Raises:
            HeldError: another process has its epoch, or holds its engine.
            LimitError: too many are here, or came lately.

        """
        known = live or self._stored(source.epoch)
        if known is not None and _is_another(known, source):
            raise HeldError(f"epoch {source.epoch} is another process's; draw a random one at the start")
        hold = None
        if source.process == ENGINE_CORE and source.key.engine:
            hold = self._owners.enter(source.key, source.credential, oust)
        try:
            self.admission.check_source(
                source.key, core=hold is not None, new_bytes=0 if known is not None else size
            )
        except LimitError:
            self.leave(hold)
            raise
        return hold

    def leave(self, hold: Ownership | None, *, goodbye: bool = False) -> None:
        """Release the engine of a source whose stream has ended, after a *goodbye* or without."""
        if hold is not None:
            self._owners.leave(hold, goodbye=goodbye)


def _is_another(known: Source, source: Source) -> bool:
    """Return whether *source* is another process than *known*, which has the same epoch and may be the agent's own."""
    return known.process == AGENT_PROCESS or known.credential not in (b"", source.credential)
