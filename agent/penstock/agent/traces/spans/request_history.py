"""The entries of one request, sorted by kind and time, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from penstock.agent.traces.spans import ids
from penstock.agent.traces.spans.deferral_pairs import covered_time, pair_deferrals
from penstock.agent.traces.spans.model import EventEntry, ProbeEntry, SampleEntry
from penstock.proto.v1 import common_pb2, events_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.agent.model import Source
    from penstock.agent.traces.spans.deferral_pairs import RequestDeferral
    from penstock.agent.traces.spans.model import Entry
    from penstock.proto.v1.common_pb2 import Peer
    from penstock.proto.v1.events_pb2 import LoadOutcome, RequestClosed, TransferFailure

# Severity: the request's span has the most severe outcome.
_SEVERITY = {
    common_pb2.OUTCOME_FAILED: 4,
    common_pb2.OUTCOME_ABORTED: 3,
    common_pb2.OUTCOME_RECOMPUTED: 2,
    common_pb2.OUTCOME_RETRIED: 1,
}


def entry_time(entry: Entry) -> int:
    """Return when the entry was made, on the engine's clock."""
    if isinstance(entry, EventEntry):
        return entry.event.time_unix_nano
    return entry.body.end_time_unix_nano


def _began(entry: Entry) -> int:
    """Return the start time that an entry reports; its own time if it reports none or a later one."""
    if not isinstance(entry, EventEntry):
        return entry.body.start_time_unix_nano
    event = entry.event
    kind = event.WhichOneof("body")
    starts = {
        "transfer_failure": event.transfer_failure.start_time_unix_nano,
        "deferral_end": event.deferral_end.start_time_unix_nano,
        "lease_closed": event.lease_closed.start_time_unix_nano,
    }
    return min(starts.get(kind or "", 0) or event.time_unix_nano, event.time_unix_nano)


def _order(entry: Entry) -> tuple[object, ...]:
    """Return a total order that does not depend on the order of arrival."""
    if isinstance(entry, EventEntry):
        event = entry.event
        return (
            event.time_unix_nano,
            event.component,
            event.rank,
            entry.source.epoch,
            event.SerializeToString(deterministic=True),
        )
    if isinstance(entry, ProbeEntry):
        return (entry.probe.end_time_unix_nano, -1, 0, entry.source.epoch, b"", *entry.probe)
    sample = entry.sample
    return (sample.end_time_unix_nano, sample.component, sample.rank, entry.source.epoch, b"", *sample)


@dataclass(frozen=True, slots=True)
class Cause:
    """Cause of a failure, as it is copied onto the request's spans."""

    mode: int
    error_type: int
    peer: Peer


@dataclass(frozen=True)
class RequestFacts:
    """The entries of one request by kind, each kind in the order of time. Derived values are cached.

    Attributes:
        lost_unix_nano: when its engine vanished before the request closed; 0 if it did not.
        dropped: number of entries above the limit of a request; they are missing here.

    """

    request_id: str
    closed: EventEntry | None
    failures: tuple[EventEntry, ...]
    outcomes: tuple[EventEntry, ...]
    deferral_starts: tuple[EventEntry, ...]
    deferral_ends: tuple[EventEntry, ...]
    leases: tuple[EventEntry, ...]
    delays: tuple[EventEntry, ...]
    pinned: tuple[EventEntry, ...]
    handshakes: tuple[EventEntry, ...]
    samples: tuple[SampleEntry, ...]
    probes: tuple[ProbeEntry, ...]
    suspected: tuple[EventEntry, ...] = ()
    lost_unix_nano: int = 0
    dropped: int = 0

    @classmethod
    def of(
        cls, request_id: str, entries: Iterable[Entry], *, lost_unix_nano: int = 0, dropped: int = 0
    ) -> RequestFacts:
        """Sort *entries*; their order does not matter."""
        by_kind: dict[str, list[EventEntry]] = {}
        samples: list[SampleEntry] = []
        probes: list[ProbeEntry] = []
        for entry in sorted(entries, key=_order):
            if isinstance(entry, SampleEntry):
                samples.append(entry)
            elif isinstance(entry, ProbeEntry):
                probes.append(entry)
            else:
                by_kind.setdefault(entry.event.WhichOneof("body") or "", []).append(entry)

        def kind(name: str) -> tuple[EventEntry, ...]:
            return tuple(by_kind.get(name, ()))

        return cls(
            request_id=request_id,
            closed=next(iter(kind("request_closed")), None),
            failures=kind("transfer_failure"),
            outcomes=kind("load_outcome"),
            deferral_starts=kind("deferral_start"),
            deferral_ends=kind("deferral_end"),
            leases=kind("lease_closed"),
            delays=kind("transfer_delayed"),
            pinned=kind("blocks_pinned"),
            handshakes=kind("handshake"),
            samples=tuple(samples),
            probes=tuple(probes),
            suspected=kind("answer_suspected"),
            # An engine that tells the end has come back.
            lost_unix_nano=0 if "request_closed" in by_kind else lost_unix_nano,
            dropped=dropped,
        )

    @cached_property
    def own(self) -> tuple[Entry, ...]:
        """Entries about the request itself; a handshake that it waited for is not one."""
        closed = () if self.closed is None else (self.closed,)
        return (
            *closed,
            *self.outcomes,
            *self.deferral_starts,
            *self.deferral_ends,
            *self.failures,
            *self.leases,
            *self.delays,
            *self.pinned,
            *self.suspected,
            *self.samples,
            *self.probes,
        )

    @cached_property
    def source(self) -> Source:
        """The scheduler's process if it has an entry, else any process that has. Requires an own entry."""
        return self.own[0].source

    @property
    def closing(self) -> RequestClosed | None:
        """The message that closed it."""
        return None if self.closed is None else self.closed.event.request_closed

    @property
    def identity(self) -> ids.RequestIdentity:
        """What the ids of its spans are made of."""
        closing = self.closing
        if closing is None:
            return ids.RequestIdentity(
                self.request_id,
                prefill_request_id=self._remote_request_id,
                began_unix_nano=self.start_unix_nano,
            )
        decode = closing.kv_role == common_pb2.ROLE_DECODE
        return ids.RequestIdentity(
            self.request_id,
            prefill_request_id=closing.remote_request_id if decode else "",
            caller=ids.parse_traceparent(closing.traceparent),
            tracestate=closing.tracestate,
            began_unix_nano=self.start_unix_nano,
        )

    @property
    def _remote_request_id(self) -> str:
        for entry in self.failures:
            failure = entry.event.transfer_failure
            if failure.direction == common_pb2.DIRECTION_RECEIVE and failure.remote_request_id:
                return failure.remote_request_id
        starts = (entry.event.deferral_start.remote_request_id for entry in self.deferral_starts)
        return next(filter(None, starts), "")

    @cached_property
    def start_unix_nano(self) -> int:
        """When it arrived; without a closing entry, the start of its earliest entry."""
        if self.closed is not None and self.closed.event.request_closed.arrival_time_unix_nano:
            return min(
                self.closed.event.request_closed.arrival_time_unix_nano, self.closed.event.time_unix_nano
            )
        return min(_began(entry) for entry in self.own)

    @cached_property
    def end_unix_nano(self) -> int:
        """When it was closed or lost; else the time of its last entry."""
        if self.closed is not None:
            return self.closed.event.time_unix_nano
        return max(self.lost_unix_nano, *(entry_time(entry) for entry in self.own))

    @cached_property
    def outcome(self) -> LoadOutcome | None:
        """The most severe outcome; the first of equals."""
        outcomes = [entry.event.load_outcome for entry in self.outcomes]
        return max(outcomes, key=lambda outcome: _SEVERITY.get(outcome.outcome, 0), default=None)

    @cached_property
    def failure(self) -> TransferFailure | None:
        """The first failure of its own; if all are collateral, the first of those."""
        failures = [entry.event.transfer_failure for entry in self.failures]
        own = [failure for failure in failures if failure.mode != common_pb2.FAILURE_MODE_COLLATERAL]
        return next(iter(own or failures), None)

    @cached_property
    def cause(self) -> Cause | None:
        """Mode, error type and peer of the failure; None if there is none."""
        outcome, failure = self.outcome, self.failure
        if outcome is not None and (outcome.mode or failure is None):
            return Cause(outcome.mode, outcome.error_type, outcome.peer)
        if failure is not None:
            return Cause(failure.mode, failure.error_type, failure.peer)
        return None

    @property
    def peer(self) -> Peer:
        """The peer of the failure if there is one, else of the transfer; empty if there is none."""
        if self.cause is not None and self.cause.peer.address:
            return self.cause.peer
        if self.closing is not None and self.closing.peer.address:
            return self.closing.peer
        for entry in self.samples:
            if entry.sample.peer:
                return common_pb2.Peer(address=entry.sample.peer, engine_id=entry.sample.peer_engine_id)
        peers = (entry.event.deferral_start.peer for entry in self.deferral_starts)
        return next((peer for peer in peers if peer.address), common_pb2.Peer())

    @cached_property
    def deferrals(self) -> tuple[RequestDeferral, ...]:
        """Its deferrals, each start paired with its end."""
        return pair_deferrals(self.deferral_starts, self.deferral_ends)

    @cached_property
    def open_deferrals(self) -> tuple[EventEntry, ...]:
        """Deferrals without an end in the log."""
        return tuple(deferral.entry for deferral in self.deferrals if not deferral.ended)

    @cached_property
    def deferred_nano(self) -> int:
        """Time of the request that deferrals cover; one without an end counts to the end of the request."""
        spans = (deferral.interval(self.end_unix_nano) for deferral in self.deferrals)
        return covered_time(spans, self.start_unix_nano, self.end_unix_nano)

    def clamp(self, nano: int) -> int:
        """Return *nano*, at most the request's duration."""
        return min(nano, self.end_unix_nano - self.start_unix_nano)

    def notable(self, long_deferral_nano: int) -> bool:
        """Return whether the trace is kept at any sample ratio."""
        return bool(
            self.failures
            or self.outcomes
            or self.pinned
            or self.suspected
            or self.lost_unix_nano
            or self.deferred_nano >= long_deferral_nano
            or any(e.sample.result == common_pb2.TRANSFER_RESULT_ERROR for e in self.samples)
            or any(e.event.lease_closed.ending == events_pb2.LEASE_ENDING_EXPIRED for e in self.leases)
            or (self.closing is not None and self.closing.finish_reason == "error")
        )
