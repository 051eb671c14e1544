"""The spans of one request: its own, and those below it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.batch import gate_times
from penstock.agent.traces.spans import attributes, ids, semconv
from penstock.agent.traces.spans.child_spans import ChildSpans
from penstock.agent.traces.spans.loads import request_loads
from penstock.agent.traces.spans.model import EventEntry, Span
from penstock.proto.v1 import common_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.agent.traces.spans.loads import Load
    from penstock.agent.traces.spans.model import AttributeValue, Entry
    from penstock.agent.traces.spans.request_history import RequestFacts
    from penstock.proto.v1.events_pb2 import TransferDelayed

# GenAI operations by the prefix of the request ids of vLLM's API server.
_OPERATIONS = {"chatcmpl": "chat", "cmpl": "text_completion"}
# Outcomes that cost the state that did not come.
_LOSING = frozenset((common_pb2.OUTCOME_FAILED, common_pb2.OUTCOME_ABORTED))


def request_spans(
    facts: RequestFacts,
    identity: ids.RequestIdentity,
    *,
    common: Mapping[str, AttributeValue] | None = None,
    parent_span_id: str | None = None,
) -> list[Span]:
    """Build the spans of a request; nothing if there is no entry about it.

    Args:
        facts: the request's entries.
        identity: what the ids are made of.
        common: attributes that each span gets.
        parent_span_id: the request's span, if it is finished already: then none is built here; empty
            if that one was not exported, so that nothing names it. None builds one.

    """
    if not facts.own:
        return []
    common, loaded = dict(common or {}), request_loads(facts)
    if parent_span_id is not None:
        return ChildSpans(facts, identity, loaded, common, parent_span_id).spans()
    request = _request_span(facts, identity, loaded, common)
    return [request, *ChildSpans(facts, identity, loaded, common, request.span_id).spans()]


def _request_span(
    facts: RequestFacts,
    identity: ids.RequestIdentity,
    loaded: Sequence[Load],
    common: Mapping[str, AttributeValue],
) -> Span:
    outcome, cause = facts.outcome, facts.cause
    error = None
    if outcome is not None and outcome.outcome == common_pb2.OUTCOME_FAILED and cause is not None:
        text = facts.failure.error_text if facts.failure is not None else outcome.reason
        error = attributes.error_message(cause.mode, cause.error_type, text)
    # The load has the link to prefill; a request without one (a clean-up) has it itself.
    linked = any(load.channel == common_pb2.CHANNEL_KV and not load.sending for load in loaded)
    return Span(
        trace_id=identity.trace_id,
        span_id=identity.span_id,
        parent_span_id=identity.parent_span_id,
        name=semconv.REQUEST,
        start_unix_nano=facts.start_unix_nano,
        end_unix_nano=facts.end_unix_nano,
        source=facts.source,
        attributes=attributes.span_attributes(
            {
                **_identity_attributes(identity),
                semconv.PROVIDER_NAME: "vllm",
                semconv.REQUEST_MODEL: facts.source.model,
                **_state_attributes(facts),
                **_closing_attributes(facts),
                **_gate_attributes(facts),
                **attributes.peer_attributes(facts.peer),
                **attributes.cause_attributes(cause),
                **attributes.outcome_attributes(outcome),
                **_cost_attributes(facts),
                semconv.REHEARSAL: attributes.rehearsal(facts.own),
                **common,
            },
            error,
        ),
        error=error,
        links=() if linked else attributes.prefill_link(identity),
        request_id=identity.request_id,
        entries=tuple(entry for entry in facts.own if _reported_by_request(entry)),
        remote_parent=bool(identity.parent_span_id),
        tracestate=identity.tracestate,
    )


def _reported_by_request(entry: Entry) -> bool:
    """Return whether the request's span reports an entry; the others have a span of their own."""
    if not isinstance(entry, EventEntry):
        return False
    event = entry.event
    if event.HasField("load_outcome"):
        return event.load_outcome.outcome != common_pb2.OUTCOME_RECOMPUTED
    return event.HasField("request_closed")


def _identity_attributes(identity: ids.RequestIdentity) -> dict[str, AttributeValue | None]:
    named = ids.external_id(identity.request_id)
    return {
        semconv.GEN_AI_REQUEST_ID: named,
        semconv.OPERATION_NAME: _OPERATIONS.get(named.partition("-")[0]),
        semconv.REQUEST_ID: identity.request_id,
        semconv.REMOTE_REQUEST_ID: identity.prefill_request_id,
    }


def _state_attributes(facts: RequestFacts) -> dict[str, AttributeValue | None]:
    pinned = (e.event.blocks_pinned for e in facts.pinned)
    delay = max((e.event.transfer_delayed for e in facts.delays), key=_delay_nano, default=None)
    return {
        semconv.ENGINE_LOST: bool(facts.lost_unix_nano) or None,
        semconv.UNFINISHED: True if facts.closing is None and not facts.lost_unix_nano else None,
        semconv.ENTRIES_DROPPED: facts.dropped or None,
        semconv.DEFERRED_SECONDS: attributes.seconds(facts.deferred_nano) or None,
        semconv.DELAY_SECONDS: None if delay is None else attributes.seconds(facts.clamp(delay.delay_nano)),
        semconv.DELAYED_BY_PEER: None if delay is None else delay.caused_by_peer.address,
        semconv.PINNED_BLOCKS: sum(pin.blocks for pin in pinned if not pin.released) or None,
    }


def _delay_nano(delay: TransferDelayed) -> int:
    return delay.delay_nano


def _closing_attributes(facts: RequestFacts) -> dict[str, AttributeValue | None]:
    closing = facts.closing
    if closing is None:
        return {}
    end = facts.end_unix_nano
    token = attributes.moment_within(closing.first_token_time_unix_nano, facts.start_unix_nano, end)
    scheduled = attributes.moment_within(
        closing.scheduled_time_unix_nano, facts.start_unix_nano, token or end
    )
    arrival = facts.start_unix_nano if closing.arrival_time_unix_nano else 0
    named = closing.external_request_id
    return {
        semconv.CLIENT_REQUEST_ID: named if named != ids.external_id(facts.request_id) else None,
        semconv.REQUEST_ROLE: attributes.enum_word(common_pb2.Role, closing.kv_role),
        semconv.FINISH_REASON: closing.finish_reason,
        semconv.FINISH_REASONS: (closing.finish_reason,) if closing.finish_reason else None,
        semconv.INPUT_TOKENS: closing.prompt_tokens,
        semconv.OUTPUT_TOKENS: closing.output_tokens,
        semconv.LOCAL_CACHED_TOKENS: closing.local_cached_tokens,
        semconv.EXTERNAL_CACHED_TOKENS: closing.external_cached_tokens,
        semconv.PREEMPTIONS: closing.preemptions or None,
        semconv.LEASED_BLOCKS: closing.leased_blocks or None,
        semconv.TIME_IN_QUEUE: attributes.seconds_between(arrival, scheduled),
        semconv.TIME_TO_FIRST_TOKEN: attributes.seconds_between(arrival, token),
    }


def _gate_attributes(facts: RequestFacts) -> dict[str, AttributeValue | None]:
    times = gate_times(facts.closing) if facts.closing is not None else None
    if times is None:
        return {}
    return {
        **{
            f"{semconv.FIRST_TOKEN_GATE}.{gate}": attributes.seconds(facts.clamp(nano))
            for gate, nano in times.largest_first()
        },
        semconv.FIRST_TOKEN_LONGEST_GATE: times.longest or None,
    }


def _cost_attributes(facts: RequestFacts) -> dict[str, AttributeValue | None]:
    outcomes = [entry.event.load_outcome for entry in facts.outcomes]
    done = [outcome for outcome in outcomes if outcome.outcome == common_pb2.OUTCOME_RECOMPUTED]
    lost = [outcome for outcome in outcomes if outcome.outcome in _LOSING]
    return {
        semconv.TOKENS_KEPT: min((outcome.tokens_kept for outcome in done), default=None),
        semconv.TOKENS_RECOMPUTED: sum(outcome.tokens_recomputed for outcome in done) if done else None,
        semconv.ITEMS_RECOMPUTED: sum(outcome.items_recomputed for outcome in done) or None,
        # The wire has one field for both.
        semconv.TOKENS_LOST: sum(outcome.tokens_recomputed for outcome in lost) if lost else None,
        semconv.ITEMS_LOST: sum(outcome.items_recomputed for outcome in lost) or None,
    }
