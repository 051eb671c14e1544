"""The calls about events, and the trees and sentences made of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.agent.admin import convert
from penstock.agent.admin.targets import selection_of, source_target
from penstock.agent.errors import ContractError
from penstock.agent.journal.connect import describe
from penstock.agent.journal.index import event_request_ids
from penstock.agent.policy.notice import Notice
from penstock.agent.traces.explain import explain
from penstock.agent.traces.query import get_trace
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import CHANNEL_EPLB, CHANNEL_KV
from penstock.proto.v1.events_pb2 import Event
from penstock.proto.v1.ingest_pb2 import Batch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from penstock.agent.admin.context import AgentContext
    from penstock.agent.journal import Journal, Reader
    from penstock.agent.model import LoggedBatch, Source
    from penstock.agent.selector import Selection

T = TypeVar("T")

KINDS = tuple(field.name for field in Event.DESCRIPTOR.oneofs_by_name["body"].fields)
MAX_EVENTS = 10_000
_DEFAULT_EVENTS = 100
# What no index answers is filtered out of at most this many of the newest events.
_SCANNED = 20_000
# Batches that a watcher reads at a time, and how often it looks for the end, in seconds.
_READ_AT_ONCE = 64
_MAX_NANO = (1 << 63) - 1
_LOOK_AGAIN = 5.0


@dataclass(frozen=True, slots=True)
class Filter:
    """Which events a request asks for."""

    request: admin.ListEventsRequest
    selection: Selection

    @classmethod
    def of(cls, request: admin.ListEventsRequest) -> Filter:
        """Check a request.

        Raises:
            ContractError: an unknown kind, or a selector that cannot be read.

        """
        unknown = sorted(set(request.kinds) - set(KINDS))
        if unknown:
            raise ContractError(f"{unknown[0]!r} is no kind of event; use one of {', '.join(KINDS)}")
        return cls(request, selection_of(request.selector))

    @property
    def indexed(self) -> bool:
        """True if the journal's own index answers it whole."""
        request = self.request
        return self.selection.everything and not (request.channel or request.mode or request.peer)

    def takes(self, event: Event, source: Source) -> bool:
        """Tell whether the event is asked for, its request and its time aside."""
        kind = event.WhichOneof("body")
        if kind is None or (self.request.kinds and kind not in self.request.kinds):
            return False
        body = getattr(event, kind)
        request = self.request
        return (
            (not request.channel or _channel(kind, body) == request.channel)
            and (not request.mode or getattr(body, "mode", 0) == request.mode)
            and (not request.peer or request.peer in _peers(body))
            and self.selection.matches(source_target(source))
        )


# What is about one channel without saying so.
_CHANNELS = {
    "eplb_rebalance": CHANNEL_EPLB,
    "handshake": CHANNEL_KV,
    "lease_closed": CHANNEL_KV,
}


def _channel(kind: str, body: Any) -> int:
    return _CHANNELS[kind] if kind in _CHANNELS else getattr(body, "channel", 0)


def _peers(body: Any) -> set[str]:
    """Return the peers that an event is about: also the one that held another up."""
    return {getattr(body, name).address for name in ("peer", "caused_by_peer") if hasattr(body, name)}


class Tail:
    """Wakes those who follow the log."""

    def __init__(self, journal: Journal) -> None:
        self.notice = Notice()
        self.closed = False
        journal.on_commit(lambda _id, _source, _batch: self.notice.notify())

    def close(self) -> None:
        """End all that follow."""
        self.closed = True
        self.notice.notify()


async def list_events(agent: AgentContext, request: admin.ListEventsRequest) -> admin.ListEventsResponse:
    """Return the newest events that the request asks for, oldest first."""
    wanted = Filter.of(request)
    limit = min(request.limit or _DEFAULT_EVENTS, MAX_EVENTS)
    return await with_reader(agent, lambda reader: _list(reader, wanted, limit, agent.clock()))


async def watch_events(
    agent: AgentContext, tail: Tail, request: admin.ListEventsRequest
) -> AsyncIterator[admin.LoggedEvent]:
    """Yield events as they are committed; those since the request's ``since`` first, if it has one."""
    wanted = Filter.of(request)
    with describe(agent.journal.path), agent.journal.reader() as reader:
        position = await asyncio.to_thread(reader.last)
        if request.HasField("since"):
            limit = min(request.limit or _DEFAULT_EVENTS, MAX_EVENTS)
            for logged in (await asyncio.to_thread(_list, reader, wanted, limit, agent.clock())).events:
                position = max(position, logged.batch)
                yield logged
        while not tail.closed:
            seen = tail.notice.version
            batches = await asyncio.to_thread(reader.batches, position, _READ_AT_ONCE)
            for event in await asyncio.to_thread(_events_of, reader, batches, wanted):
                yield event
            if batches:
                position = batches[-1].id
            else:
                await tail.notice.wait(seen, _LOOK_AGAIN)


async def get_trace_of(agent: AgentContext, request: admin.GetTraceRequest) -> admin.Trace:
    """Return the spans of one request."""
    return await with_reader(agent, lambda reader: get_trace(reader, request.request_id))


async def explain_of(agent: AgentContext, request: admin.GetTraceRequest) -> admin.Explanation:
    """Return one sentence for each cause of one request."""
    return await with_reader(agent, lambda reader: explain(reader, request.request_id))


async def with_reader(agent: AgentContext, read: Callable[[Reader], T]) -> T:
    """Run *read* on a thread, with a reader of its own.

    Raises:
        StateError: the journal cannot be read.

    """

    def run() -> T:
        with describe(agent.journal.path), agent.journal.reader() as reader:
            return read(reader)

    return await asyncio.to_thread(run)


def _list(reader: Reader, wanted: Filter, limit: int, now: float) -> admin.ListEventsResponse:
    request = wanted.request
    since = int(now * 1e9) - request.since.ToNanoseconds() if request.HasField("since") else 0
    # Longer ago than there is time is all of it; SQLite takes no larger numbers either.
    since = min(max(since, 0), _MAX_NANO)
    asked = limit + 1 if wanted.indexed else _SCANNED
    rows = reader.events(
        kinds=tuple(request.kinds), request_id=request.request_id, since_unix_nano=since, limit=asked
    )
    found = []
    for event in _parse(reader, rows, wanted):
        found.append(event)
        if len(found) > limit:
            break
    truncated = len(found) > limit or (not wanted.indexed and len(rows) == _SCANNED)
    return admin.ListEventsResponse(events=reversed(found[:limit]), truncated=truncated)


def _events_of(reader: Reader, batches: list[LoggedBatch], wanted: Filter) -> list[admin.LoggedEvent]:
    rows = [
        (logged, index) for logged in batches for index in range(len(Batch.FromString(logged.body).events))
    ]
    request_id = wanted.request.request_id
    return [
        event
        for event in _parse(reader, rows, wanted)
        if not request_id or request_id in event_request_ids(event.event)
    ]


def _parse(
    reader: Reader, rows: list[tuple[LoggedBatch, int]], wanted: Filter
) -> Iterator[admin.LoggedEvent]:
    batches: dict[int, Batch] = {}
    sources: dict[int, Source | None] = {}
    for logged, index in rows:
        if logged.id not in batches:
            # Rows of one batch are neighbours: only the last one is worth keeping.
            batches = {logged.id: Batch.FromString(logged.body)}
        if logged.epoch not in sources:
            sources[logged.epoch] = reader.source(logged.epoch)
        source, event = sources[logged.epoch], batches[logged.id].events[index]
        if source is not None and wanted.takes(event, source):
            yield admin.LoggedEvent(
                batch=logged.id,
                index=index,
                key=convert.key_message(source.key),
                process=source.process,
                event=event,
            )
