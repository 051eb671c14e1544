"""The calls about events and traces."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.agent.admin.lookups import (
    EventScan,
    messages,
    selection_of,
    source_target,
)
from penstock.agent.aio import ChangeSignal, to_completion
from penstock.agent.errors import ContractError
from penstock.agent.journal import event_request_ids, journal_errors
from penstock.agent.traces.query import get_trace
from penstock.agent.traces.spans import no_policies
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import CHANNEL_EPLB, CHANNEL_KV
from penstock.proto.v1.events_pb2 import Event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from penstock.agent.admin.lookups import AgentContext
    from penstock.agent.journal import Journal, Reader
    from penstock.agent.model import LoggedBatch, Source
    from penstock.agent.parsing import Selection
    from penstock.agent.traces.spans import PolicyLookup

T = TypeVar("T")

KINDS = tuple(field.name for field in Event.DESCRIPTOR.oneofs_by_name["body"].fields)
MAX_EVENTS = 10_000
_DEFAULT_EVENTS = 100
# Bytes of a response: half of gRPC's limit.
_ANSWER_BYTES = 8 << 20
# Batches and bytes that a watcher reads at a time.
_READ_AT_ONCE, _BYTES_AT_ONCE = 64, 4 << 20
_MAX_NANO = (1 << 63) - 1
_POLL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Filter:
    """The events that a request selects."""

    request: admin.ListEventsRequest
    selection: Selection

    @classmethod
    def of(cls, request: admin.ListEventsRequest) -> Filter:
        """Validate a request.

        Raises:
            ContractError: an unknown kind, or an invalid selector.

        """
        unknown = sorted(set(request.kinds) - set(KINDS))
        if unknown:
            raise ContractError(f"{unknown[0]!r} is not a kind of event; use one of {', '.join(KINDS)}")
        return cls(request, selection_of(request.selector))

    def matches(self, event: Event, source: Source) -> bool:
        """Return whether the event matches, except for request id and time."""
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


# Channel of kinds that have no such field.
_CHANNELS = {
    "eplb_rebalance": CHANNEL_EPLB,
    "handshake": CHANNEL_KV,
    "lease_closed": CHANNEL_KV,
}


def _channel(kind: str, body: Any) -> int:
    return _CHANNELS[kind] if kind in _CHANNELS else getattr(body, "channel", 0)


def peers_of(body: Any) -> set[str]:
    """Return the peers of an event, including the one that delayed another."""
    return {getattr(body, name).address for name in ("peer", "caused_by_peer") if hasattr(body, name)}


class NewEntrySignal:
    """Wakes the watchers of the log."""

    def __init__(self, journal: Journal) -> None:
        self.notice = ChangeSignal()
        self.closed = False
        journal.on_commit(lambda _id, _source, _contents: self.notice.notify())

    def close(self) -> None:
        """End all watches."""
        self.closed = True
        self.notice.notify()


async def list_events(agent: AgentContext, request: admin.ListEventsRequest) -> admin.ListEventsResponse:
    """Return the newest matching events, oldest first."""
    wanted = Filter.of(request)
    limit = min(request.limit or _DEFAULT_EVENTS, MAX_EVENTS)
    return await read_in_turn(
        agent, lambda reader: _list(reader, wanted, limit, agent.clock(), agent.policies)
    )


async def watch_events(
    agent: AgentContext, tail: NewEntrySignal, request: admin.ListEventsRequest
) -> AsyncIterator[admin.LoggedEvent]:
    """Yield events as they are committed; first those after the request's position or time, if it has one."""
    wanted = Filter.of(request)
    with journal_errors(agent.journal.path), agent.journal.reader(agent.stopping.is_set) as reader:
        position = await _in_thread(reader.last)
        if request.HasField("after_batch"):
            position = request.after_batch if request.after_batch <= position else 0
        elif request.HasField("since"):
            limit = min(request.limit or _DEFAULT_EVENTS, MAX_EVENTS)
            for logged in (
                await _in_thread(_list, reader, wanted, limit, agent.clock(), agent.policies)
            ).events:
                position = max(position, logged.batch)
                yield logged
        while not tail.closed:
            seen = tail.notice.version
            found, last = await _in_thread(_events_after, reader, position, wanted, agent.policies)
            for event in found:
                yield event
            if last > position:
                position = last
            else:
                await tail.notice.wait(seen, _POLL_SECONDS)


async def get_trace_of(agent: AgentContext, request: admin.GetTraceRequest) -> admin.Trace:
    """Return the spans of one request."""
    return await read_in_turn(
        agent,
        lambda reader: get_trace(
            reader, request.request_id, agent.policies, described=agent.registry.roles.described
        ),
    )


async def read_in_turn(agent: AgentContext, read: Callable[[Reader], T]) -> T:
    """Run *read* as :func:`read_in_thread`, at most two at a time.

    Raises:
        StateError: the journal cannot be read.
        ImpossibleError: the agent is stopping.

    """
    async with agent.turns:
        # The turn ends with the thread, even if the caller is cancelled.
        return await to_completion(read_in_thread(agent, read))


async def read_in_thread(agent: AgentContext, read: Callable[[Reader], T]) -> T:
    """Run *read* on a thread with its own reader.

    Raises:
        StateError: the journal cannot be read.
        ImpossibleError: the agent is stopping.

    """

    def run() -> T:
        with (
            journal_errors(agent.journal.path),
            agent.journal.reader(agent.stopping.is_set) as reader,
        ):
            return read(reader)

    return await asyncio.to_thread(run)


async def _in_thread(read: Callable[..., T], *arguments: Any) -> T:
    """Run *read* on a thread; a cancelled caller waits for its end, as the reader is closed next."""
    return await to_completion(asyncio.to_thread(read, *arguments))


def since_unix_nano(
    request: admin.ListEventsRequest
    | admin.ListRequestsRequest
    | admin.ListSuspectsRequest
    | admin.WhatIfRequest
    | admin.GetBillRequest,
    now: float,
    default: int | None = None,
) -> int:
    """Return the start time of a request's ``since``, nanoseconds in SQLite's range; *default* before now, or 0, for none."""
    ago = request.since.ToNanoseconds() if request.HasField("since") else default
    since = 0 if ago is None else int(now * 1e9) - ago
    # Before the epoch means everything.
    return min(max(since, 0), _MAX_NANO)


def _list(
    reader: Reader, wanted: Filter, limit: int, now: float, policies: PolicyLookup = no_policies
) -> admin.ListEventsResponse:
    request = wanted.request
    since = since_unix_nano(request, now)
    kinds = tuple(request.kinds)
    scan = EventScan.newest(reader, kinds=kinds, since_unix_nano=since, request_id=request.request_id)
    found: list[admin.LoggedEvent] = []
    left, truncated = _ANSWER_BYTES, False
    for event in _wanted(scan, wanted, policies):
        if len(found) == limit or left <= 0:
            truncated = True
            break
        found.append(event)
        left -= event.ByteSize()
    return admin.ListEventsResponse(
        events=reversed(found),
        truncated=truncated or scan.cut,
        unreadable_batches=messages.clamp_unsigned(scan.unreadable, messages.MAX_UINT32),
    )


def _events_after(
    reader: Reader, position: int, wanted: Filter, policies: PolicyLookup
) -> tuple[list[admin.LoggedEvent], int]:
    """Return the events of the next batches after *position*, and the last of these; *position* for none."""
    batches = reader.batches(position, _READ_AT_ONCE, _BYTES_AT_ONCE)
    return _events_of(reader, batches, wanted, policies), batches[-1].id if batches else position


def _events_of(
    reader: Reader, batches: list[LoggedBatch], wanted: Filter, policies: PolicyLookup = no_policies
) -> list[admin.LoggedEvent]:
    rows = [(logged, index) for logged in batches for index in range(len(reader.parse(logged).events))]
    request_id = wanted.request.request_id
    return [
        event
        # The batches are bounded already, and none may be missed.
        for event in _wanted(EventScan(reader, rows, events=len(rows)), wanted, policies)
        if not request_id or request_id in event_request_ids(event.event)
    ]


def _wanted(scan: EventScan, wanted: Filter, policies: PolicyLookup) -> Iterator[admin.LoggedEvent]:
    for found in scan:
        if wanted.matches(found.event, found.source):
            present, previous = (
                messages.source_messages(policies(found.source, hash_, found.event.time_unix_nano))
                for hash_ in _hashes(found.event)
            )
            logged = admin.LoggedEvent(
                batch=found.logged.id,
                index=found.position,
                key=messages.key_message(found.source.key),
                process=found.source.process,
                event=found.event,
                policies=present,
                previous_policies=previous,
            )
            _add_duration(logged.event)
            yield logged


def _hashes(event: Event) -> tuple[str, str]:
    """Return the policy's hash of an event and the previous one; empty for none."""
    match event.WhichOneof("body"):
        case "load_outcome":
            return event.load_outcome.policy_hash, ""
        case "policy_applied":
            return event.policy_applied.hash, event.policy_applied.previous_hash
    return "", ""


def _add_duration(event: Event) -> None:
    """Set the duration of a deferral that has ended, unless its engine did or its start is not known."""
    if not event.HasField("deferral_end"):
        return
    body = event.deferral_end
    if body.start_time_unix_nano and not body.HasField("duration_nano"):
        body.duration_nano = max(0, event.time_unix_nano - body.start_time_unix_nano)
