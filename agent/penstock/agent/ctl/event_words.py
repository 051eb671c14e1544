"""One line for each kind of event. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.agent.ctl import words
from penstock.proto.names import label
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import events_pb2 as events

if TYPE_CHECKING:
    from collections.abc import Callable


def event_peer(event: events.Event) -> str:
    """Return the peer that an event is about; ``-`` if it is about none."""
    body = _body(event)
    return body.peer.address or words.NONE if body is not None and hasattr(body, "peer") else words.NONE


def event_words(event: events.Event) -> str:
    """Say what happened."""
    kind = event.WhichOneof("body")
    if kind is None:
        return "of a newer version"
    text = _WORDS[kind](getattr(event, kind))
    return f"{text} [rehearsal]" if event.rehearsal else text


def _body(event: events.Event) -> Any:
    kind = event.WhichOneof("body")
    return None if kind is None else getattr(event, kind)


def _seconds(start: int, end: int) -> str:
    return words.span_of_time((end - start) / 1e9) if start and end else "?"


def _transfer_failure(body: events.TransferFailure) -> str:
    mode, kind = label(common.FailureMode, body.mode), label(common.ErrorType, body.error_type)
    cause = f", caused by {body.caused_by_request_id}" if body.caused_by_request_id else ""
    text = f": {words.one_line(body.error_text)}" if body.error_text else ""
    return f"{label(common.Channel, body.channel)} {mode}/{kind}{cause}{text}"


def _load_outcome(body: events.LoadOutcome) -> str:
    outcome, mode = label(common.Outcome, body.outcome), label(common.FailureMode, body.mode)
    by = label(common.DecidedBy, body.decided_by)
    # A request whose peer an operator has cut off never tried: there is no mode.
    after = f" after {mode}" if body.mode else ""
    recomputed = body.outcome == common.OUTCOME_RECOMPUTED
    tokens = f"{body.tokens_recomputed} {'recomputed' if recomputed else 'lost'}"
    reason = f": {words.one_line(body.reason)}" if body.reason else ""
    return (
        f"{label(common.Channel, body.channel)} {outcome} by {by}{after}, "
        f"{body.tokens_kept} tokens kept, {tokens}{reason}{_observed(body)}"
    )


def _observed(body: events.LoadOutcome) -> str:
    if not body.observed_outcome:
        return ""
    reason = f": {words.one_line(body.observed_reason)}" if body.observed_reason else ""
    return f" (observed: {label(common.Outcome, body.observed_outcome)}{reason})"


def _deferral_start(body: events.DeferralStart) -> str:
    return f"waits for {label(common.DeferralReason, body.reason)}"


def _deferral_end(body: events.DeferralEnd) -> str:
    reason, ending = label(common.DeferralReason, body.reason), label(common.DeferralEnding, body.ending)
    observed = (
        f" (observed: given up, {words.one_line(body.observed_reason)})" if body.observed_reason else ""
    )
    return f"waited for {reason}: {ending}{observed}"


def _request_closed(body: events.RequestClosed) -> str:
    return (
        f"{body.finish_reason or 'closed'}, {body.prompt_tokens} prompt tokens "
        f"({body.external_cached_tokens} received), {body.output_tokens} output"
    )


def _handshake(body: events.Handshake) -> str:
    took = _seconds(body.start_time_unix_nano, body.end_time_unix_nano)
    error = f": {words.one_line(body.error_text)}" if body.error_text else ""
    return f"{label(common.TransferResult, body.result)} after {took}, {body.waiters_total} waited{error}"


def _lease_closed(body: events.LeaseClosed) -> str:
    return f"{body.blocks} blocks: {label(events.LeaseEnding, body.ending)}"


def _policy_applied(body: events.PolicyApplied) -> str:
    if not body.accepted:
        # An order's error names it; it has no hash.
        what = "" if body.cause == "order" else f"{words.short_hash(body.hash)}: "
        return f"refused {what}{words.one_line(body.error)}"
    return f"{words.short_hash(body.previous_hash)} → {words.short_hash(body.hash)} ({body.cause})"


def _quarantine_changed(body: events.QuarantineChanged) -> str:
    before, after = (label(events.QuarantineState, state) for state in (body.previous, body.state))
    return f"{before} → {after} ({body.reason})"


def _eplb_rebalance(body: events.EplbRebalance) -> str:
    took, pause = words.span_of_time(body.duration_nano / 1e9), words.span_of_time(body.pause_nano / 1e9)
    remote = sum(layer.experts_received_remotely for layer in body.layers)
    local = sum(layer.experts_received_locally for layer in body.layers)
    parts = [
        f"{label(common.TransferResult, body.result)} ({label(events.EplbTrigger, body.trigger)})",
        f"{len(body.layers)} layers, {remote} experts from other ranks, {local} moved locally",
        f"took {took}, pause {pause}",
    ]
    if body.HasField("balancedness_before") and body.HasField("balancedness_after"):
        parts.append(f"balancedness {body.balancedness_before:.2f} → {body.balancedness_after:.2f}")
    if body.error_text:
        parts.append(words.one_line(": ".join(filter(None, (body.error_class, body.error_text)))))
    return ", ".join(parts)


def _source_lost(body: events.SourceLost) -> str:
    return f"{body.process} vanished with {body.open_deferrals} open deferrals"


def _forgotten(body: events.Forgotten) -> str:
    what = "peer" if body.HasField("peer") else "engine"
    return f"{what} forgotten, {f'by {body.author}' if body.author else 'it was gone for --retire-after'}"


def _transfer_delayed(body: events.TransferDelayed) -> str:
    return (
        f"held up {words.span_of_time(body.delay_nano / 1e9)} by {body.caused_by_peer.address or 'unknown'}"
    )


def _blocks_pinned(body: events.BlocksPinned) -> str:
    return f"{body.blocks} blocks {'let go' if body.released else 'stay pinned: the peer may still write'}"


_WORDS: dict[str, Callable[[Any], str]] = {
    "transfer_failure": _transfer_failure,
    "load_outcome": _load_outcome,
    "deferral_start": _deferral_start,
    "deferral_end": _deferral_end,
    "request_closed": _request_closed,
    "handshake": _handshake,
    "lease_closed": _lease_closed,
    "policy_applied": _policy_applied,
    "quarantine_changed": _quarantine_changed,
    "eplb_rebalance": _eplb_rebalance,
    "source_lost": _source_lost,
    "forgotten": _forgotten,
    "transfer_delayed": _transfer_delayed,
    "blocks_pinned": _blocks_pinned,
}
