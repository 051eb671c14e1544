"""Detects lost sources: those that disconnected without a goodbye and stayed away for the grace time.

Those of a server that has announced its stop have stopped instead.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import structlog
from penstock.agent.aio import to_completion
from penstock.agent.errors import PenstockError
from penstock.agent.journal import MAX_INTEGER, journal_errors
from penstock.proto.v1.common_pb2 import DEFERRAL_ENDING_ENGINE_LOST
from penstock.proto.v1.events_pb2 import DeferralEnd, Event, SourceLost, SourceStopped
from penstock.proto.v1.ingest_pb2 import Batch, Drop

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.agent.journal import Journal
    from penstock.agent.model import Source

SERVER_STOPPING: Final = "server_stopping"
"""The event that it announces with."""

# Above it, the server that announced first is forgotten.
_MAX_SERVERS = 1_024


class ServerStops:
    """The newest announcement of each server.

    It is about the processes that began before it: a later life of the server has a later beginning, by the same clock.
    """

    def __init__(self) -> None:
        self._stops: dict[str, int] = {}

    def announce(self, server: str, time_unix_nano: int, received_unix_nano: int) -> None:
        """Note that *server* stops.

        Args:
            server: of the engines' keys.
            time_unix_nano: the engine's clock. It counts as no later than the next argument, so that an announcement
                from the future does not excuse later lives.
            received_unix_nano: the agent's clock.

        """
        time = max(min(time_unix_nano, received_unix_nano), self._stops.pop(server, 0))
        self._stops[server] = time
        while len(self._stops) > _MAX_SERVERS:
            del self._stops[next(iter(self._stops))]

    def covers(self, source: Source) -> bool:
        """Return whether *source* is a process of a server that has announced its stop since the process began."""
        return 0 < source.start_time_unix_nano <= self._stops.get(source.key.server, 0)


_log = structlog.get_logger(__name__)

STATE_LOST = "agent_state_lost"
"""The drop reason of acknowledged entries that are lost."""

# Epochs whose loss was written; an engine begins a new one then.
_MAX_TOLD = 10_000
# When the disk is full, a loss is tried again after this.
_RETRY_SECONDS = 5.0


def loss_batch(
    source: Source,
    epoch: int,
    seq: int,
    starts: Iterable[Event],
    *,
    open_deferrals: int,
    last_seen: int,
    now: int,
) -> Batch:
    """Return the batch *seq* of the agent's source *epoch* that records the loss of *source*.

    Each deferral of *starts* ends with ``engine_lost`` when the source was last seen.

    Args:
        open_deferrals: how many it left open in all.
        last_seen: unix nanoseconds.
        now: unix nanoseconds.

    """
    events = [
        Event(
            time_unix_nano=max(last_seen, start.time_unix_nano),
            component=start.component,
            rank=start.rank,
            request_id=start.request_id,
            rehearsal=start.rehearsal,
            deferral_end=DeferralEnd(
                reason=start.deferral_start.reason,
                channel=start.deferral_start.channel,
                peer=start.deferral_start.peer if start.deferral_start.HasField("peer") else None,
                ending=DEFERRAL_ENDING_ENGINE_LOST,
                start_time_unix_nano=start.time_unix_nano,
            ),
        )
        for start in starts
    ]
    lost = SourceLost(
        epoch=source.epoch,
        process=source.process,
        last_seen_unix_nano=last_seen,
        open_deferrals=open_deferrals,
    )
    return Batch(epoch=epoch, seq=seq, events=[*events, Event(time_unix_nano=now, source_lost=lost)])


def stop_batch(source: Source, epoch: int, seq: int, *, last_seen: int, now: int) -> Batch:
    """Return the batch *seq* of the agent's source *epoch* that records that *source* has stopped.

    What it left open ends as with a goodbye: nothing more is known of it.

    Args:
        last_seen: unix nanoseconds.
        now: unix nanoseconds.

    """
    stopped = SourceStopped(epoch=source.epoch, process=source.process, last_seen_unix_nano=last_seen)
    return Batch(epoch=epoch, seq=seq, events=[Event(time_unix_nano=now, source_stopped=stopped)])


class LossDetector:
    """Waits *grace* seconds for each source that is away, then writes its loss, or its stop, into the log.

    Attributes:
        stops: what servers have announced.

    """

    def __init__(self, journal: Journal, grace: float, stops: ServerStops | None = None) -> None:
        self._journal = journal
        self._grace = grace
        self.stops = stops or ServerStops()
        self._waiting: dict[int, asyncio.Task[None]] = {}
        self.entries_lost = 0
        self._told: set[int] = set()

    async def forgotten(self, source: Source, entries: int) -> None:
        """Write into the log that *entries* of a source were acknowledged and are missing from the state; once an epoch.

        A stream that ends meanwhile does not end it.
        """
        if source.epoch not in self._told:
            await to_completion(self._forgotten(source, entries))

    async def _forgotten(self, source: Source, entries: int) -> None:
        async with self._journal.own.next_batch(source.key) as (own, seq):
            if source.epoch in self._told:
                # The engine has connected again while it was being written.
                return
            lost = Drop(reason=STATE_LOST, kind="entry", count=min(entries, MAX_INTEGER))
            batch = Batch(epoch=own.epoch, seq=seq, drops=[lost])
            await self._journal.append(own, batch, batch.SerializeToString())
            if len(self._told) >= _MAX_TOLD:
                self._told.clear()
            self._told.add(source.epoch)
        self.entries_lost += entries
        _log.error(
            "acknowledged entries are lost: the state is older than them",
            engine=str(source.key),
            process=source.process,
            epoch=source.epoch,
            entries=entries,
        )

    def connected(self, epoch: int) -> None:
        """Stop waiting for a source that has reconnected."""
        task = self._waiting.pop(epoch, None)
        if task is not None:
            task.cancel()

    def is_awaited(self, epoch: int) -> bool:
        """Return whether the source is away, and neither lost nor stopped yet."""
        return epoch in self._waiting

    def away(self, source: Source, last_seen_unix_nano: int = 0, more: float = 0.0) -> None:
        """Begin to wait for a source whose stream ended without a goodbye: now, or when it was last seen.

        It has the grace time and *more* seconds.
        """
        self.connected(source.epoch)
        self._waiting[source.epoch] = asyncio.ensure_future(
            self._wait(source, last_seen_unix_nano or time.time_ns(), self._grace + more)
        )

    async def _wait(self, source: Source, last_seen: int, grace: float) -> None:
        await asyncio.sleep(grace)
        while not await self._try(source, last_seen):  # noqa: ASYNC110  (nothing tells when the disk has room)
            await asyncio.sleep(_RETRY_SECONDS)
        if self._waiting.get(source.epoch) is asyncio.current_task():
            del self._waiting[source.epoch]

    async def _try(self, source: Source, last_seen: int) -> bool:
        try:
            with journal_errors(self._journal.path):
                await self._lose(source, last_seen)
        except PenstockError as error:
            _log.warning("source loss not written", epoch=source.epoch, error=str(error))
            return False
        return True

    async def _lose(self, source: Source, last_seen: int) -> None:
        async with self._journal.own.next_batch(source.key) as (own, seq):
            with self._journal.reader() as reader:
                if not reader.is_open(source.epoch):
                    # It said goodbye, and did not stay for the acknowledgement.
                    return
                deferrals, count = reader.open_deferrals(source.epoch)
            now = time.time_ns()
            stopped = self.stops.covers(source)
            if stopped:
                batch = stop_batch(source, own.epoch, seq, last_seen=last_seen, now=now)
            else:
                starts = [deferral.start for deferral in deferrals]
                batch = loss_batch(
                    source, own.epoch, seq, starts, open_deferrals=count, last_seen=last_seen, now=now
                )
            await self._journal.append(own, batch, batch.SerializeToString())
        if stopped:
            _log.info("source stopped", engine=str(source.key), process=source.process, epoch=source.epoch)
            return
        _log.warning(
            "source lost",
            engine=str(source.key),
            process=source.process,
            epoch=source.epoch,
            open_deferrals=count,
        )

    async def stop(self) -> None:
        """Stop; sources that are still away are waited for again after the next start."""
        tasks = list(self._waiting.values())
        self._waiting.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
