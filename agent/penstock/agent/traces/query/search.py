"""Finds a request in the journal, and the other requests of its trace.

Reads a bounded number of bytes, the newest first: a client can put one request id into any part of the log.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from penstock.agent.errors import NotFoundError
from penstock.agent.journal import STEP_SECONDS, ReadBudget
from penstock.agent.traces.assembly import AssemblyLimits, EngineLoss, Segment, split_segments
from penstock.agent.traces.spans import (
    EventEntry,
    RequestFacts,
    RequestKey,
    entry_time,
    external_id,
    request_entries,
    without_batch,
)
from penstock.proto.names import ENGINE_CORE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from collections.abc import Set as AbstractSet

    from penstock.agent.journal import Reader
    from penstock.agent.model import EngineKey, LoggedBatch, Source
    from penstock.agent.traces.spans import Entry

_TRACE_ID = re.compile(r"[0-9a-f]{32}")
# vLLM's OpenAI server puts these before what the client sends as X-Request-Id.
_PREFIXES = ("", "cmpl-", "chatcmpl-", "embd-", "resp_")
_MAX_REQUESTS = 64
_MAX_NAMED = 5
_MAX_CLOSED_SCANNED = 5_000
_MAX_EVENTS_SCANNED = 500
# Of one request, the newest.
_MAX_ENTRIES = 512
# Of the batches that name the requests; each step of the search has as much.
_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """What the journal says about one request.

    Attributes:
        facts: its entries by kind.
        segments: the same entries, as the export groups them.
        requested: the question names it; else it belongs to the same trace.
        handshakes: those that it waited for, or that made its loads fail.
        truncated: the log has older entries of it that were not read.

    """

    key: RequestKey
    facts: RequestFacts
    segments: tuple[Segment, ...]
    requested: bool
    handshakes: tuple[EventEntry, ...]
    truncated: bool = False

    @property
    def source(self) -> Source:
        """The process that reported it."""
        return self.facts.source

    @property
    def trace_id(self) -> str:
        """Its trace."""
        return self.facts.identity.trace_id


def find_request_traces(reader: Reader, text: str) -> list[RequestTrace]:
    """Return the requests of one trace: those that *text* names first, then the others, each by time.

    Args:
        reader: of the journal.
        text: vLLM's internal id, the external one, what the client sent, a unique prefix, or a trace id.

    Raises:
        NotFoundError: no request has this id, or several unrelated ones.

    """
    requested = _requested_ids(reader, text)
    allowance = ReadBudget(_BYTES, STEP_SECONDS)
    entries = _gather(reader, requested, allowance)
    kept = [entry for found in entries.values() for _, entry in found.kept]
    engines = {entry.source.key for entry in kept}
    endings = list(_endings(reader, engines, min(map(entry_time, kept)))) if kept else []
    requests = [
        _request_trace(
            reader, key, found, endings, requested=key.request_id in requested, truncated=allowance.cut
        )
        for key, found in entries.items()
    ]
    requests = sorted(
        (request for request in requests if request.facts.own),
        key=lambda request: (not request.requested, request.facts.start_unix_nano, request.key),
    )
    traces = {request.trace_id for request in requests if request.requested}
    if not traces:
        damage = f" ({reader.unreadable} of its batches are damaged)" if reader.unreadable else ""
        raise NotFoundError(
            f"no request {text!r} in the journal{damage}; "
            "'agentctl get events' shows the ids of requests that had trouble"
        )
    if len(traces) > 1:
        names = [request.key.request_id for request in requests if request.requested]
        more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
        raise NotFoundError(
            f"{text!r} names several requests: {', '.join(names[:_MAX_NAMED])}{more}; give one of these"
        )
    return requests


def _requested_ids(reader: Reader, text: str) -> set[str]:
    """Return the internal ids that *text* stands for; empty if there are none."""
    if not text:
        return set()
    if _TRACE_ID.fullmatch(text):
        by_trace = _by_trace(reader, text)
        if by_trace:
            return by_trace
    for prefix in _PREFIXES:
        exact = _internal_ids(reader, prefix + text)
        if exact:
            return exact
    for prefix in _PREFIXES:
        found = reader.find_requests(prefix + text, _MAX_REQUESTS)
        if found:
            return set().union(*(_internal_ids(reader, name) for name in found))
    return set()


def _by_trace(reader: Reader, trace_id: str) -> set[str]:
    """Look through the newest requests: the trace id is a hash, or the caller's."""
    found = set()
    rows = reader.scan(
        kinds=("request_closed",), limit=_MAX_CLOSED_SCANNED, allowance=ReadBudget(seconds=STEP_SECONDS)
    )
    for logged, index in rows:
        event = reader.parse(logged).events[index]
        source = reader.source(logged.epoch)
        if source is not None:
            facts = RequestFacts.of(event.request_id, [EventEntry(source, event)])
            if facts.identity.trace_id == trace_id:
                found.add(event.request_id)
    return found


def _pairs(
    reader: Reader, request_id: str, allowance: ReadBudget
) -> Iterator[tuple[LoggedBatch, RequestKey, Entry]]:
    """Yield all entries of the batches that name a request, one batch in memory at a time, the newest first."""
    for logged in reader.request_batches_newest_first(request_id, allowance=allowance):
        source = reader.source(logged.epoch)
        if source is not None:
            for key, entry in request_entries(source, reader.parse(logged)):
                yield logged, key, entry


def _internal_ids(reader: Reader, name: str) -> set[str]:
    found: set[str] = set()
    for _, key, entry in _pairs(reader, name, ReadBudget(_BYTES, STEP_SECONDS)):
        names = {key.request_id, external_id(key.request_id)}
        if isinstance(entry, EventEntry) and entry.event.HasField("request_closed"):
            names.add(entry.event.request_closed.external_request_id)
        if name in names:
            found.add(key.request_id)
    return found


def remote_request_id(entry: Entry) -> str:
    """Return the id of the other side's request that an entry names; empty for none."""
    if not isinstance(entry, EventEntry):
        return ""
    kind = entry.event.WhichOneof("body")
    if kind in ("request_closed", "transfer_failure", "deferral_start"):
        return str(getattr(entry.event, kind).remote_request_id)
    return ""


@dataclass(slots=True)
class _Entries:
    kept: list[tuple[LoggedBatch, Entry]] = field(default_factory=list)
    dropped: int = 0

    def add(self, logged: LoggedBatch, entry: Entry) -> None:
        if len(self.kept) < _MAX_ENTRIES:
            self.kept.append((_stamp(logged), without_batch(entry)))
        else:
            self.dropped += 1


def _gather(reader: Reader, requested: set[str], allowance: ReadBudget) -> dict[RequestKey, _Entries]:
    """Collect the entries of the requests, and of those on the other side of them, both ways."""
    entries: dict[RequestKey, _Entries] = defaultdict(_Entries)
    seen, waiting = set(requested), deque(sorted(requested))
    while waiting:
        request_id = waiting.popleft()
        for logged, key, entry in _pairs(reader, request_id, allowance):
            remote = remote_request_id(entry)
            related = set()
            if key.request_id == request_id:
                entries[key].add(logged, entry)
                related = {remote} - {""}
            elif remote == request_id:
                related = {key.request_id}
            if len(seen) < _MAX_REQUESTS:
                waiting.extend(related - seen)
                seen |= related
    return entries


def _request_trace(
    reader: Reader,
    key: RequestKey,
    entries: _Entries,
    endings: Iterable[tuple[LoggedBatch, EngineLoss | None]],
    *,
    requested: bool,
    truncated: bool,
) -> RequestTrace:
    facts = RequestFacts.of(key.request_id, (entry for _, entry in entries.kept), dropped=entries.dropped)
    if not facts.own:
        return RequestTrace(key, facts, (), requested, ())
    segments = split_segments(
        sorted([*entries.kept, *endings], key=lambda each: each[0].id), AssemblyLimits()
    )
    if facts.closed is None:
        facts = replace(facts, lost_unix_nano=segments[-1].lost_unix_nano)
    return RequestTrace(
        key, facts, tuple(segments), requested, _handshakes(reader, facts), truncated or entries.dropped > 0
    )


def _endings(
    reader: Reader, engines: AbstractSet[EngineKey], since_unix_nano: int
) -> Iterator[tuple[LoggedBatch, EngineLoss | None]]:
    """Yield what ends requests of *engines* without a word about them: these vanished or said goodbye, and time."""
    for logged, index in reader.scan(
        kinds=("source_lost", "source_stopped"),
        since_unix_nano=since_unix_nano,
        limit=_MAX_EVENTS_SCANNED,
        allowance=ReadBudget(_BYTES, STEP_SECONDS),
    ):
        event = reader.parse(logged).events[index]
        gone = event.source_lost if event.HasField("source_lost") else event.source_stopped
        source = reader.source(gone.epoch)
        if source is not None and source.process == ENGINE_CORE and source.key in engines:
            yield _stamp(logged), EngineLoss(source.key, gone.epoch, gone.last_seen_unix_nano)
    allowance = ReadBudget(_BYTES, STEP_SECONDS)
    # The oldest first: a request ends with the first end of its engine.
    for row in reader.source_rows():
        if (
            not row.closed
            or row.source.process != ENGINE_CORE
            or row.source.key not in engines
            or row.last_seen_unix_nano < since_unix_nano
        ):
            continue
        if allowance.ends:
            break
        last = reader.batch(row.last_batch)
        if last is not None:
            allowance.consume(len(last.body))
            if reader.parse(last).HasField("goodbye"):
                yield _stamp(last), EngineLoss(row.source.key, row.source.epoch, last.received_unix_nano)
    newest = reader.batch(reader.last())
    if newest is not None:
        yield _stamp(newest), None


def _stamp(logged: LoggedBatch) -> LoggedBatch:
    """Return a batch without its body."""
    return replace(logged, body=b"")


def _handshakes(reader: Reader, facts: RequestFacts) -> tuple[EventEntry, ...]:
    """Return the handshakes that name the request, and those that its failures and delays name."""
    found = {entry.event.handshake.id: entry for entry in facts.handshakes}
    failures = [(entry, entry.event.transfer_failure.handshake_id) for entry in facts.failures]
    delays = [(entry, entry.event.transfer_delayed.handshake_id) for entry in facts.delays]
    missing = {number for _, number in (*failures, *delays)} - found.keys() - {0}
    if missing:
        # A handshake names some of its waiters only, and it may be minutes older than its victim.
        events = reader.scan(kinds=("handshake",), limit=_MAX_EVENTS_SCANNED)
        for logged, index in events:
            event = reader.parse(logged).events[index]
            source = reader.source(logged.epoch)
            if event.handshake.id in missing and source is not None:
                found[event.handshake.id] = EventEntry(source, event)
    return tuple(found[number] for number in sorted(found))
