"""The calls about events, and the trees and sentences made of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.agent.admin.support import Scan, messages, selection_of, source_target
from penstock.agent.aio import ChangeSignal, to_completion
from penstock.agent.errors import ContractError
from penstock.agent.journal import event_request_ids, journal_errors
from penstock.agent.traces.query import explain, get_trace
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import CHANNEL_EPLB, CHANNEL_KV
from penstock.proto.v1.events_pb2 import Event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from penstock.agent.admin.support import AgentContext
    from penstock.agent.journal import Journal, Reader
    from penstock.agent.model import LoggedBatch, Source
    from penstock.agent.parsing import Selection

T = TypeVar("T")

KINDS = tuple(field.name for field in Event.DESCRIPTOR.oneofs_by_name["body"].fields)
MAX_EVENTS = 10_000
_DEFAULT_EVENTS = 100
# Of an answer: half of what gRPC lets it have.
_ANSWER_BYTES = 8 << 20
# Batches that a watcher reads at a time, and their bytes; how often it looks for the end, in seconds.
_READ_AT_ONCE, _BYTES_AT_ONCE = 64, 4 << 20
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
            and (not request.peer or request.peer in peers_of(body))
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


def peers_of(body: Any) -> set[str]:
    """Return the peers that an event is about: also the one that held another up."""
    return {getattr(body, name).address for name in ("peer", "caused_by_peer") if hasattr(body, name)}


class NewEntrySignal:
    """Wakes those who follow the log."""

    def __init__(self, journal: Journal) -> None:
        self.notice = ChangeSignal()
        self.closed = False
        journal.on_commit(lambda _id, _source, _contents: self.notice.notify())

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
    agent: AgentContext, tail: NewEntrySignal, request: admin.ListEventsRequest
) -> AsyncIterator[admin.LoggedEvent]:
    """Yield events as they are committed; first those after a position or since a moment, if the request has one."""
    wanted = Filter.of(request)
    with journal_errors(agent.journal.path), agent.journal.reader(agent.stopping.is_set) as reader:
        position = await _in_thread(reader.last)
        if request.HasField("after_batch"):
            position = request.after_batch if request.after_batch <= position else 0
        elif request.HasField("since"):
            limit = min(request.limit or _DEFAULT_EVENTS, MAX_EVENTS)
            for logged in (await _in_thread(_list, reader, wanted, limit, agent.clock())).events:
                position = max(position, logged.batch)
                yield logged
        while not tail.closed:
            seen = tail.notice.version
            batches = await _in_thread(reader.batches, position, _READ_AT_ONCE, _BYTES_AT_ONCE)
            for event in await _in_thread(_events_of, reader, batches, wanted):
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
    """Run *read* as :func:`at_once`, when it is its turn.

    Raises:
        StateError: the journal cannot be read.
        ImpossibleError: the agent stops.

    """
    async with agent.turns:
        # Its turn is over when its thread is done, whether or not anybody still waits for it.
        return await to_completion(at_once(agent, read))


async def at_once(agent: AgentContext, read: Callable[[Reader], T]) -> T:
    """Run *read* on a thread, with a reader of its own.

    Raises:
        StateError: the journal cannot be read.
        ImpossibleError: the agent stops.

    """

    def run() -> T:
        with (
            journal_errors(agent.journal.path),
            agent.journal.reader(agent.stopping.is_set) as reader,
        ):
            return read(reader)

    return await asyncio.to_thread(run)


async def _in_thread(read: Callable[..., T], *arguments: Any) -> T:
    """Run *read* on a thread; who is cancelled meanwhile waits for its end, as its reader is about to be closed."""
    return await to_completion(asyncio.to_thread(read, *arguments))


def since_unix_nano(request: admin.ListEventsRequest | admin.ListRequestsRequest, now: float) -> int:
    """Return the moment that a request's ``since`` means, in SQLite's range; 0 for none."""
    since = int(now * 1e9) - request.since.ToNanoseconds() if request.HasField("since") else 0
    # Longer ago than there is time is all of it.
    return min(max(since, 0), _MAX_NANO)


def _list(reader: Reader, wanted: Filter, limit: int, now: float) -> admin.ListEventsResponse:
    request = wanted.request
    since = since_unix_nano(request, now)
    kinds = tuple(request.kinds)
    scan = Scan.newest(reader, kinds=kinds, since_unix_nano=since, request_id=request.request_id)
    found: list[admin.LoggedEvent] = []
    left, truncated = _ANSWER_BYTES, False
    for event in _wanted(scan, wanted):
        if len(found) == limit or left <= 0:
            truncated = True
            break
        found.append(event)
        left -= event.ByteSize()
    return admin.ListEventsResponse(
        events=reversed(found),
        truncated=truncated or scan.cut,
        unreadable_batches=messages.counted(scan.unreadable, messages.MOST_32),
    )


def _events_of(reader: Reader, batches: list[LoggedBatch], wanted: Filter) -> list[admin.LoggedEvent]:
    rows = [(logged, index) for logged in batches for index in range(len(reader.parse(logged).events))]
    request_id = wanted.request.request_id
    return [
        event
        # What is read at once is bounded already, and nothing of it may be missed.
        for event in _wanted(Scan(reader, rows, events=len(rows)), wanted)
        if not request_id or request_id in event_request_ids(event.event)
    ]


def _wanted(scan: Scan, wanted: Filter) -> Iterator[admin.LoggedEvent]:
    for found in scan:
        if wanted.takes(found.event, found.source):
            yield admin.LoggedEvent(
                batch=found.logged.id,
                index=found.position,
                key=messages.key_message(found.source.key),
                process=found.source.process,
                event=found.event,
            )
