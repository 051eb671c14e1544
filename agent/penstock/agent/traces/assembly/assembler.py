"""Assembles the entries of the log into finished spans.

A request's spans are finished when a grace time has passed in the log since the batch that closed it:
its entries come from several processes. What comes later is finished the same way, as spans of its own.
Everything is finished in the order of the closing batches, and what is finished is a function of the
log alone; so one position, the last closing batch that was delivered, tells what need not be sent again.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.batch import typed_events
from penstock.agent.journal import parse_batch
from penstock.agent.model import EngineKey, Source
from penstock.agent.traces.assembly.finished_requests import (
    EngineLoss,
    FinishedRequests,
    PendingBytes,
    Segment,
)
from penstock.agent.traces.assembly.model import AssemblyLimits, Finished, FinishedRequest
from penstock.agent.traces.assembly.sampling import Sampler, sample_request, sample_trace
from penstock.agent.traces.spans import (
    STANDALONE_KINDS,
    EventEntry,
    RequestFacts,
    RequestKey,
    request_entries,
    request_spans,
    semconv,
    standalone_spans,
)
from penstock.proto.names import ENGINE_CORE

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.agent.model import LoggedBatch
    from penstock.agent.traces.assembly.sampling import SamplingDecision
    from penstock.agent.traces.spans import Entry, RequestIdentity, Span


@dataclass(slots=True)
class _Request:
    key: RequestKey
    segment: Segment
    since: int
    earlier: FinishedRequest | None
    # Of each entry.
    batches: list[int] = field(default_factory=list)
    dropped: int = 0


class _Hurried(NamedTuple):
    """What was finished without its grace, for want of memory: until when its late entries may come, and its batches."""

    until: int
    closing_batch: int
    first_batch: int


@dataclass(frozen=True, slots=True, order=True)
class _Due:
    clock: int
    closing_batch: int
    number: int
    closed_unix_nano: int = field(compare=False)
    item: _Request | Span = field(compare=False)


def _raise(error: Exception) -> None:
    raise error


def _none_finished(_key: RequestKey, _logged: LoggedBatch) -> FinishedRequest | None:
    return None


class Assembler:
    """Assembles the log, batch by batch; one thread at a time.

    Args:
        source: the source of an epoch, None if it is not known.
        find_finished: looks up a request that was closed before the given batch and is not in memory.
        sampler: which traces of a source's engine are kept.
        limits: bounds.
        delivered: the last closing batch that was delivered before. What was closed by then may be read in part only, so
            it is not remembered as it seems to be.
        on_error: called with an internal error, which costs the spans of one request or one entry;
            raises to end the assembly.

    Attributes:
        given_up: number of requests that were finished before their end, by the limit that they exceeded.

    """

    def __init__(
        self,
        source: Callable[[int], Source | None],
        *,
        find_finished: Callable[[RequestKey, LoggedBatch], FinishedRequest | None] = _none_finished,
        sampler: Callable[[Source], Sampler] = lambda _source: Sampler(),
        limits: AssemblyLimits | None = None,
        delivered: int = 0,
        on_error: Callable[[Exception], None] = _raise,
    ) -> None:
        self._source = source
        self._find_finished = find_finished
        self._sampler = sampler
        self._limits = limits or AssemblyLimits()
        self._delivered = delivered
        self._on_error = on_error
        # In the order of their first batch.
        self._requests: dict[RequestKey, _Request] = {}
        # A heap: the oldest closing first.
        self._due: list[_Due] = []
        self._closings = 0
        # The newest closing batch of what is finished.
        self._handed_out = 0
        self._remembered = FinishedRequests(self._limits.max_remembered, self._limits.max_remembered_bytes)
        self._holding = PendingBytes()
        # What was finished without its grace: when that is over, its oldest closing batch, its oldest batch.
        self._hurried: deque[_Hurried] = deque()
        self.given_up: Counter[str] = Counter()
        # Log time: the sum of the steps forward. A wall clock that steps back must not hold spans up.
        self._clock = 0
        self._received = 0
        self._position = 0

    @property
    def position(self) -> int:
        """The last batch that was applied."""
        return self._position

    @property
    def closing(self) -> int:
        """How many closings wait for their grace to pass."""
        return len(self._due)

    @property
    def low(self) -> int:
        """The oldest batch that something unfinished still needs; the one after the position if nothing does."""
        low = min([self._position + 1, *(each.first_batch for each in self._hurried)])
        if self._due:
            low = min(low, self._due[0].closing_batch)
        first = next(iter(self._requests.values()), None)
        return low if first is None else min(low, first.segment.first_batch)

    @property
    def settled(self) -> int:
        """The last closing batch whose entries have all been waited for, if it is finished.

        What the memory did not have room to wait for belongs to one above it: a walk that begins again takes such
        closings, and what came after them within their grace, once more.
        """
        return min([self._position, *(each.closing_batch - 1 for each in self._hurried)])

    def apply(self, logged: LoggedBatch) -> list[Finished]:
        """Add the next batch of the log; returns what its time finishes, oldest closing first."""
        if self._received:
            self._clock += max(0, logged.received_unix_nano - self._received)
        self._received = logged.received_unix_nano
        finished = self._advance_to(self._clock)
        self._position = logged.id
        try:
            self._apply_batch(logged)
        except Exception as error:  # noqa: BLE001  (on_error decides)
            self._on_error(error)
        return finished + self._free_memory(logged)

    def advance(self, now_unix_nano: int) -> list[Finished]:
        """Finish what is due at *now*, the agent's wall clock, when the log has nothing newer."""
        return self._advance_to(self._clock + max(0, now_unix_nano - self._received))

    def _advance_to(self, clock: int) -> list[Finished]:
        while self._hurried and self._hurried[0].until <= clock:
            self._hurried.popleft()
        return self._finish(clock)

    def _apply_batch(self, logged: LoggedBatch) -> None:
        batch = parse_batch(logged)
        source = self._source(logged.epoch) or Source(logged.epoch, EngineKey("", ""), "unknown")
        events = typed_events(batch)
        for kind, event in events:
            if kind not in STANDALONE_KINDS:
                continue
            try:
                for span in standalone_spans(EventEntry(source, event)):
                    self._push(span, logged)
                    self._holding.add(logged.id, len(logged.body))
            except Exception as error:  # noqa: BLE001  (on_error decides)
                self._on_error(error)
        for key, entry in request_entries(source, batch):
            try:
                self._add(key, entry, logged)
            except Exception as error:  # noqa: BLE001  (on_error decides)
                self._on_error(error)
        for kind, event in events:
            if kind in {"source_lost", "source_stopped"}:
                gone = event.source_lost if kind == "source_lost" else event.source_stopped
                self._end_lost_requests(gone.epoch, gone.last_seen_unix_nano, logged)
        if batch.HasField("goodbye"):
            self._end_lost_requests(logged.epoch, logged.received_unix_nano, logged)
        self._enforce_limits(logged)

    def _add(self, key: RequestKey, entry: Entry, logged: LoggedBatch) -> None:
        kind = entry.event.WhichOneof("body") if isinstance(entry, EventEntry) else None
        request = self._requests.get(key)
        if request is None:
            earlier = self._remembered.get(key) or self._find_finished(key, logged)
            if earlier is not None and kind == "handshake":
                return  # It links to nothing any more.
            segment = Segment.begin(entry, logged, late=earlier is not None)
            request = self._requests[key] = _Request(key, segment, self._clock, earlier)
        if len(request.segment.entries) >= self._limits.max_entries and kind != "request_closed":
            request.dropped += 1
            return
        request.batches.append(logged.id)
        self._holding.add(logged.id, len(logged.body))
        if request.segment.add(entry, logged):
            self._push(request, logged, request.earlier)

    def _push(
        self, item: _Request | Span, logged: LoggedBatch, earlier: FinishedRequest | None = None
    ) -> None:
        clock, closing_batch = self._clock, logged.id
        if earlier is not None and earlier.open_batch:
            # Where the memory had no room for a grace, younger closings are out already: the order stays.
            clock, closing_batch = clock - earlier.open_for_nano, max(earlier.open_batch, self._handed_out)
        self._closings += 1
        heapq.heappush(self._due, _Due(clock, closing_batch, self._closings, logged.received_unix_nano, item))

    def _end_lost_requests(self, epoch: int, last_seen_unix_nano: int, logged: LoggedBatch) -> None:
        """End the requests of the EngineCore that is gone."""
        source = self._source(epoch)
        if source is None or source.process != ENGINE_CORE:
            return
        loss = EngineLoss(source.key, epoch, last_seen_unix_nano)
        for request in self._requests.values():
            if request.segment.on_engine_loss(loss, logged):
                self._push(request, logged)

    def _enforce_limits(self, logged: LoggedBatch) -> None:
        """Bound what waits: the oldest requests go when they are too old or too many."""
        excess = len(self._requests) - self._limits.max_pending
        for index, request in enumerate(self._requests.values()):
            old = self._clock - request.since >= self._limits.max_age_nano
            if index >= excess and not old:
                break
            self._close_early(request, logged, "age" if old else "count")

    def _close_early(self, request: _Request, logged: LoggedBatch, reason: str) -> None:
        """Close a request before its end."""
        if request.segment.close(logged.id, logged.received_unix_nano):
            self.given_up[reason] += 1
            self._push(request, logged)

    def _free_memory(self, logged: LoggedBatch) -> list[Finished]:
        """Bound the memory: above it all that is closed is finished without a grace, and the oldest requests with it.

        All of it, in the order of the closings: one position tells what was delivered.
        """
        finished: list[Finished] = []
        if self._holding.bytes <= self._limits.max_bytes:
            return finished
        finished += self._finish(self._clock + self._limits.grace_nano)
        while self._requests and self._holding.bytes > self._limits.max_bytes * 3 // 4:
            oldest = list(islice(self._requests.values(), 1 + len(self._requests) // 8))
            for request in oldest:
                self._close_early(request, logged, "memory")
            finished += self._finish(self._clock + self._limits.grace_nano)
        if finished:
            closing_batch, first = (
                min(i.closing_batch for i in finished),
                min(i.first_batch for i in finished),
            )
            self._hurried.append(_Hurried(self._clock + self._limits.grace_nano, closing_batch, first))
        return finished

    def _finish(self, clock: int) -> list[Finished]:
        finished = []
        while self._due and self._due[0].clock + self._limits.grace_nano <= clock:
            due = heapq.heappop(self._due)
            self._handed_out = max(self._handed_out, due.closing_batch)
            if isinstance(due.item, _Request):
                del self._requests[due.item.key]
                self._holding.release(due.item.batches)
            else:
                self._holding.release((due.closing_batch,))
            try:
                finished.append(self._spans(due))
            except Exception as error:  # noqa: BLE001  (on_error decides)
                self._on_error(error)
        return finished

    def _spans(self, due: _Due) -> Finished:
        if isinstance(due.item, _Request):
            return self._request(due, due.item)
        return self._standalone(due, due.item)

    def _standalone(self, due: _Due, span: Span) -> Finished:
        handshake = span.name == semconv.HANDSHAKE
        sampler = self._sampler(span.source) if handshake else Sampler()
        keep = sample_trace(span.trace_id, None, sampler, notable=span.error is not None).keep
        return Finished(
            due.closing_batch, due.closing_batch, due.closed_unix_nano, (span,) if keep else (), int(not keep)
        )

    def _request(self, due: _Due, request: _Request) -> Finished:
        segment, earlier = request.segment, request.earlier
        facts = RequestFacts.of(
            request.key.request_id,
            segment.entries,
            lost_unix_nano=segment.lost_unix_nano,
            dropped=request.dropped,
        )
        if not facts.own:
            return Finished(due.closing_batch, segment.first_batch, due.closed_unix_nano, ())
        identity, parent = segment.identity(facts, None if earlier is None else earlier.identity)
        if earlier is not None and parent is not None and earlier.decision.keep:
            decision = earlier.decision
        else:
            decision = self._sample(facts, identity)
            parent = None if parent is None else ""
        spans = request_spans(
            facts,
            identity,
            common={semconv.SAMPLING: "forced"} if decision.forced else {},
            parent_span_id=parent,
        )
        if earlier is None and segment.ended and due.closing_batch > self._delivered:
            self._remembered.put(request.key, FinishedRequest(identity, decision))
        return Finished(
            due.closing_batch,
            segment.first_batch,
            due.closed_unix_nano,
            tuple(spans) if decision.keep else (),
            0 if decision.keep else len(spans),
        )

    def _sample(self, facts: RequestFacts, identity: RequestIdentity) -> SamplingDecision:
        return sample_request(facts, identity, self._sampler(facts.source), self._limits.long_deferral_nano)
