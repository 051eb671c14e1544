"""The spans below a request: its probes, loads, waits, recomputations and leases."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from penstock.agent.traces.spans import attributes as parts
from penstock.agent.traces.spans import ids, semconv
from penstock.agent.traces.spans.loads import ends_load
from penstock.agent.traces.spans.model import Span, SpanLink
from penstock.agent.traces.spans.request_history import Cause
from penstock.proto.v1 import common_pb2, events_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.agent.batch import ProbeSample
    from penstock.agent.traces.spans.deferral_pairs import RequestDeferral
    from penstock.agent.traces.spans.loads import Load
    from penstock.agent.traces.spans.model import AttributeValue, Entry, EventEntry, ProbeEntry
    from penstock.agent.traces.spans.request_history import RequestFacts
    from penstock.proto.v1.events_pb2 import TransferDelayed, TransferFailure

_OF_A_LEASE = frozenset((common_pb2.FAILURE_MODE_EXPIRED, common_pb2.FAILURE_MODE_LATE_READ))


def _handshake_links(handshakes: Iterable[int]) -> tuple[SpanLink, ...]:
    return tuple(
        SpanLink(*ids.handshake_ids(handshake), semconv.HANDSHAKE)
        for handshake in sorted(set(handshakes) - {0})
    )


def _failure_attributes(failure: TransferFailure) -> dict[str, AttributeValue]:
    return {
        **parts.cause_attributes(Cause(failure.mode, failure.error_type, failure.peer)),
        **parts.present(
            {
                semconv.ERROR_CLASS: failure.error_class,
                semconv.UPSTREAM_TYPE: failure.upstream_type,
                semconv.CAUSED_BY_REQUEST_ID: failure.caused_by_request_id,
                semconv.CAUSED_BY_PEER: failure.caused_by_peer.address,
                semconv.INCOMPATIBLE_FACTORS: tuple(failure.incompatibility.factors),
                semconv.BLOCKS: failure.blocks if failure.HasField("blocks") else None,
            }
        ),
    }


@dataclass(frozen=True)
class ChildSpans:
    """Builds the spans below one request; see :func:`penstock.agent.traces.spans.request_spans.request_spans`.

    Attributes:
        parent: the request's span; empty for none.

    """

    facts: RequestFacts
    identity: ids.RequestIdentity
    loads: Sequence[Load]
    common: Mapping[str, AttributeValue]
    parent: str

    def spans(self) -> list[Span]:
        """Return them, by kind and time."""
        facts = self.facts
        return [
            *self._probes(),
            *(self._load(load) for load in self.loads),
            *(
                self._detached_failure(entry)
                for entry in facts.failures
                if not ends_load(entry.event.transfer_failure) and not self._reported_by_lease(entry)
            ),
            *map(self._deferral, facts.deferrals),
            *(
                self._recompute(entry)
                for entry in facts.outcomes
                if entry.event.load_outcome.outcome == common_pb2.OUTCOME_RECOMPUTED
            ),
            *(self._lease(entry) for entry in facts.leases),
        ]

    @cached_property
    def _trace_id(self) -> str:
        return self.identity.trace_id

    def _probes(self) -> list[Span]:
        """Build a span for each probe; a failed one is reported by its failure, which has more attributes."""
        failures = (entry.event.transfer_failure for entry in self.facts.failures)
        reported = {f.peer.address for f in failures if f.mode == common_pb2.FAILURE_MODE_PROBE}
        # Several items that were asked for at once differ in nothing.
        seen: Counter[ProbeSample] = Counter()
        spans = []
        for entry in self.facts.probes:
            if entry.probe.result == common_pb2.PROBE_RESULT_ERROR and entry.probe.peer in reported:
                continue
            spans.append(self._probe(entry, seen[entry.probe]))
            seen[entry.probe] += 1
        return spans

    def _probe(self, entry: ProbeEntry, ordinal: int) -> Span:
        probe = entry.probe
        result = parts.enum_word(common_pb2.ProbeResult, probe.result)
        failed = probe.result == common_pb2.PROBE_RESULT_ERROR
        return self._span(
            semconv.EC_PROBE,
            (probe.peer, probe.end_time_unix_nano, probe.duration_nano, probe.result, ordinal),
            (probe.start_time_unix_nano, probe.end_time_unix_nano),
            {
                **parts.server_attributes(common_pb2.Peer(address=probe.peer)),
                semconv.CHANNEL: parts.enum_word(common_pb2.Channel, common_pb2.CHANNEL_EC),
                semconv.CONNECTOR: probe.connector,
                semconv.PROBE_RESULT: result,
                semconv.CAUSE_ERROR_TYPE: "other" if failed else None,
            },
            (entry,),
            client=True,
            error="the probe failed" if failed else None,
        )

    def _load(self, load: Load) -> Span:
        failure, peer = load.failure, load.peer
        delays = self._delays(load)
        delay = self.facts.clamp(max((delay.delay_nano for delay in delays), default=0))
        items = {entry.event.transfer_failure.item for entry in load.failures} - {""}
        attributes: dict[str, AttributeValue | None] = {
            **parts.server_attributes(peer),
            semconv.CHANNEL: parts.enum_word(common_pb2.Channel, load.channel),
            semconv.DIRECTION: "send" if load.sending else "receive",
            semconv.CONNECTOR: load.connector,
            semconv.ATTEMPT: load.attempt,
            semconv.RANKS: load.ranks,
            semconv.TRANSFERS: len(load.samples),
            # 0 is not known.
            semconv.BYTES: load.bytes or None,
            semconv.DESCRIPTORS: sum(entry.sample.descriptors for entry in load.samples) or None,
            semconv.END_UNCERTAINTY_SECONDS: parts.seconds(load.unseen_nano) or None,
            semconv.ITEMS: tuple(sorted(items)),
            semconv.DELAY_SECONDS: parts.seconds(delay) or None,
            semconv.DELAYED_BY_PEER: next((delay.caused_by_peer.address for delay in delays), None),
            **({} if failure is None else _failure_attributes(failure)),
            **parts.outcome_attributes(load.outcome),
        }
        error = None
        if failure is not None:
            error = parts.error_message(failure.mode, failure.error_type, failure.error_text)
        elif load.failed:
            error, attributes[semconv.CAUSE_ERROR_TYPE] = "a rank reported an error", "other"
        return self._span(
            parts.LOAD_SPAN_NAMES[load.channel],
            (load.attempt, *(("send",) if load.sending else ())),
            (load.start_unix_nano, load.end_unix_nano),
            attributes,
            (*load.failures, *load.samples),
            client=True,
            error=error,
            links=self._load_links(load),
        )

    def _delays(self, load: Load) -> list[TransferDelayed]:
        delays = [entry.event.transfer_delayed for entry in self.facts.delays]
        return [delay for delay in delays if delay.channel == load.channel]

    def _load_links(self, load: Load) -> tuple[SpanLink, ...]:
        """Link to prefill's request, and to the handshakes that the load waited for or fell victim to."""
        handshakes = [entry.event.transfer_failure.handshake_id for entry in load.failures]
        handshakes += [delay.handshake_id for delay in self._delays(load)]
        if load.channel != common_pb2.CHANNEL_KV:
            return _handshake_links(handshakes)
        handshakes += [entry.event.handshake.id for entry in self.facts.handshakes]
        return (*parts.prefill_link(self.identity), *_handshake_links(handshakes))

    def _reported_by_lease(self, entry: EventEntry) -> bool:
        """Return whether the end of the lease reports the same."""
        return entry.event.transfer_failure.mode == common_pb2.FAILURE_MODE_EXPIRED and any(
            lease.event.lease_closed.ending == events_pb2.LEASE_ENDING_EXPIRED for lease in self.facts.leases
        )

    def _detached_failure(self, entry: EventEntry) -> Span:
        """Build the span of a failure that is no load: a probe, a notification, a late read, an expiry."""
        event, failure = entry.event, entry.event.transfer_failure
        leased = failure.mode in _OF_A_LEASE
        name = semconv.KV_LEASE if leased else parts.failure_span_name(failure.channel, failure.mode)
        peer = parts.peer_attributes if leased else parts.server_attributes
        return self._span(
            name,
            (failure.mode, event.component, event.rank, event.time_unix_nano, failure.item),
            (failure.start_time_unix_nano or event.time_unix_nano, event.time_unix_nano),
            {
                **peer(failure.peer),
                semconv.CHANNEL: parts.enum_word(common_pb2.Channel, failure.channel),
                semconv.CONNECTOR: failure.connector,
                semconv.RANKS: (event.rank,),
                semconv.ITEMS: (failure.item,) if failure.item else (),
                **_failure_attributes(failure),
            },
            (entry,),
            client=not leased,
            error=parts.error_message(failure.mode, failure.error_type, failure.error_text),
            links=_handshake_links([failure.handshake_id]),
        )

    def _deferral(self, deferral: RequestDeferral) -> Span:
        """Build the span of a deferral; one whose end never came lasts to the request's: the engine was lost, or the end was."""
        event, lost = deferral.entry.event, self.facts.lost_unix_nano
        end = event.deferral_end if deferral.ended else None
        body = event.deferral_start if end is None else end
        still = common_pb2.DEFERRAL_ENDING_ENGINE_LOST if lost else common_pb2.DEFERRAL_ENDING_UNSPECIFIED
        times = deferral.interval(self.facts.end_unix_nano)
        begins = max(deferral.start_unix_nano, self.identity.began_unix_nano)
        began = 0 if end is None else end.transfer_start_time_unix_nano
        # It may have begun before, for another request or on a thread that did not wait for the scheduler.
        began = parts.moment_within(max(began, begins) if began else 0, *times)
        return self._span(
            semconv.DEFERRAL,
            (body.reason, deferral.start_unix_nano),
            times,
            {
                semconv.DEFERRAL_REASON: parts.enum_word(common_pb2.DeferralReason, body.reason),
                semconv.CHANNEL: parts.enum_word(common_pb2.Channel, body.channel),
                **parts.peer_attributes(body.peer),
                semconv.ENDING: parts.enum_word(
                    common_pb2.DeferralEnding, still if end is None else end.ending
                ),
                semconv.START_WAIT_SECONDS: parts.seconds_between(begins, began),
                semconv.OBSERVED_REASON: "" if end is None else end.observed_reason,
            },
            (deferral.entry,),
        )

    def _recompute(self, entry: EventEntry) -> Span:
        """Build the span of a recomputation: from the decision to the first token, or to the end without one."""
        outcome, time = entry.event.load_outcome, entry.event.time_unix_nano
        closing = self.facts.closing
        first_token = closing.first_token_time_unix_nano if closing is not None else 0
        last = self.facts.end_unix_nano
        end = first_token if time < first_token <= last else max(last, time)
        return self._span(
            semconv.RECOMPUTE,
            (outcome.channel, outcome.attempt),
            (time, end),
            {
                semconv.CHANNEL: parts.enum_word(common_pb2.Channel, outcome.channel),
                semconv.ATTEMPT: outcome.attempt or None,
                **parts.peer_attributes(outcome.peer),
                **parts.cause_attributes(Cause(outcome.mode, outcome.error_type, outcome.peer)),
                **parts.outcome_attributes(outcome),
                semconv.TOKENS_KEPT: outcome.tokens_kept,
                semconv.TOKENS_RECOMPUTED: outcome.tokens_recomputed,
                semconv.ITEMS_RECOMPUTED: outcome.items_recomputed or None,
            },
            (entry,),
        )

    def _lease(self, entry: EventEntry) -> Span:
        event, lease = entry.event, entry.event.lease_closed
        expired = lease.ending == events_pb2.LEASE_ENDING_EXPIRED
        cause = Cause(common_pb2.FAILURE_MODE_EXPIRED, common_pb2.ERROR_TYPE_TIMEOUT, common_pb2.Peer())
        return self._span(
            semconv.KV_LEASE,
            ("closed", event.component, event.rank),
            (lease.start_time_unix_nano or event.time_unix_nano, event.time_unix_nano),
            {
                semconv.ENDING: parts.enum_word(events_pb2.LeaseEnding, lease.ending),
                semconv.BLOCKS: lease.blocks,
                semconv.READERS: lease.readers,
                semconv.CONNECTOR: lease.connector,
                **(parts.cause_attributes(cause) if expired else {}),
            },
            (entry,),
            error=f"expired: {lease.blocks} block{' was' if lease.blocks == 1 else 's were'} not read in time"
            if expired
            else None,
        )

    def _span(
        self,
        name: str,
        key: tuple[str | int, ...],
        times: tuple[int, int],
        attributes: Mapping[str, AttributeValue | None],
        entries: tuple[Entry, ...],
        *,
        client: bool = False,
        error: str | None = None,
        links: tuple[SpanLink, ...] = (),
    ) -> Span:
        # A handshake that others wait for, too, may have begun before the request.
        begin, end = (max(time, self.identity.began_unix_nano) for time in times)
        return Span(
            trace_id=self._trace_id,
            span_id=ids.span_id(name, *self.identity.key, *key),
            parent_span_id=self.parent,
            name=name,
            start_unix_nano=begin,
            end_unix_nano=end,
            source=self.facts.source,
            attributes=parts.span_attributes(
                {
                    semconv.REQUEST_ID: self.identity.request_id,
                    **attributes,
                    semconv.REHEARSAL: parts.rehearsal(entries),
                    **self.common,
                },
                error,
            ),
            client=client,
            error=error,
            links=links,
            request_id=self.identity.request_id,
            entries=entries,
            tracestate=self.identity.tracestate,
        )
