"""One line for each kind of event. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.agent.errors import without_advice
from penstock.agent.views import text
from penstock.agent.views.tables import Table
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import events_pb2 as events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.proto.v1.admin_pb2 import LoggedEvent

    Policies = Sequence[common.PolicySource]


_WIDE_CHARACTERS = 4096
"""Maximum characters of an event's text under ``-o wide``."""


def event_peer(event: events.Event) -> str:
    """Return the peer of an event; ``-`` for none."""
    body = _body(event)
    return body.peer.address or text.NONE if body is not None and hasattr(body, "peer") else text.NONE


def logged_words(item: LoggedEvent, longest: int = 200) -> str:
    """Describe an event of the log in at most *longest* characters, with the names of its policies."""
    return event_words(item.event, longest, item.policies, item.previous_policies)


def event_words(
    event: events.Event, longest: int = 200, policies: Policies = (), previous: Policies = ()
) -> str:
    """Describe an event in at most *longest* characters; hashes of policies stand for those that are not given."""
    match event.WhichOneof("body"):
        case None:
            return "unknown kind (newer version)"
        case "load_outcome":
            found = _load_outcome(event.load_outcome, policies)
        case "policy_applied":
            found = _policy_applied(event.policy_applied, policies, previous)
        case "eplb_rebalance":
            found = f"rank {event.rank}: {_eplb_rebalance(event.eplb_rebalance)}"
        case kind:
            found = _WORDS[kind](getattr(event, kind))
    said = text.one_line(found, longest)
    return f"{said} [drill]" if event.rehearsal else said


def _body(event: events.Event) -> Any:
    kind = event.WhichOneof("body")
    return None if kind is None else getattr(event, kind)


def _seconds(start: int, end: int) -> str:
    return text.span_of_time((end - start) / 1e9) if start and end else "?"


def _transfer_failure(body: events.TransferFailure) -> str:
    mode, kind = text.word(common.FailureMode, body.mode), text.word(common.ErrorType, body.error_type)
    culprits = " at ".join(filter(None, (body.caused_by_request_id, body.caused_by_peer.address)))
    cause = f", caused by {culprits}" if culprits else ""
    factors = ", ".join(body.incompatibility.factors)
    differ = f", engines differ in {factors}" if factors else ""
    said = f": {text.folded(without_advice(body.error_text))}" if body.error_text else ""
    return f"{text.word(common.Channel, body.channel)} {mode}/{kind}{cause}{differ}{said}"


def _load_outcome(body: events.LoadOutcome, policies: Policies) -> str:
    outcome, mode = text.word(common.Outcome, body.outcome), text.word(common.FailureMode, body.mode)
    by = text.word(common.DecidedBy, body.decided_by)
    if policies and body.decided_by != common.DECIDED_BY_VLLM:
        named = text.short_policies(_deciding(body, policies), "")
        by = f"policy {named}" if body.decided_by == common.DECIDED_BY_POLICY else f"{by} under {named}"
    # A request of a peer that an operator quarantined never tried: there is no mode.
    after = f" after {mode}" if body.mode else ""
    tokens = f"{body.tokens_recomputed} tokens lost"
    if body.outcome == common.OUTCOME_RECOMPUTED:
        tokens = f"{body.tokens_kept} tokens kept, {body.tokens_recomputed} recomputed"
    reason = f": {text.folded(body.reason)}" if body.reason else ""
    return f"{text.word(common.Channel, body.channel)} {outcome} by {by}{after}, {tokens}{reason}{_observed(body)}"


def _observed(body: events.LoadOutcome) -> str:
    if not body.observed_outcome:
        return ""
    reason = f": {text.folded(body.observed_reason)}" if body.observed_reason else ""
    return f" (observed: {text.word(common.Outcome, body.observed_outcome)}{reason})"


def _deferral_start(body: events.DeferralStart) -> str:
    return f"waits for {text.word(common.DeferralReason, body.reason)}"


def _deferral_end(body: events.DeferralEnd) -> str:
    reason, ending = (
        text.word(common.DeferralReason, body.reason),
        text.word(common.DeferralEnding, body.ending),
    )
    observed = f" (observed: {_observed_wait(body.observed_reason)})" if body.observed_reason else ""
    took = f" {text.span_of_time(body.duration_nano / 1e9)}" if body.HasField("duration_nano") else ""
    return f"waited{took} for {reason}: {ending}{observed}"


def _observed_wait(reason: str) -> str:
    from penstock.rules import SLOW_PEER  # noqa: PLC0415  (a command that prints no such event does without the rules)

    done = "not loaded" if reason.startswith(SLOW_PEER) else "given up"
    return f"{done}, {text.folded(reason)}"


def _request_closed(body: events.RequestClosed) -> str:
    return (
        f"{body.finish_reason or 'closed'}, {body.prompt_tokens} prompt tokens "
        f"({body.external_cached_tokens} received), {body.output_tokens} output{_verified(body)}"
    )


def _verified(body: events.RequestClosed) -> str:
    found = [
        result
        for result in ("mismatch", "unverified", "ok")
        if any(getattr(each, result) for each in body.verifications)
    ]
    return f", {'verified' if found[0] == 'ok' else found[0]}" if found else ""


def _handshake(body: events.Handshake) -> str:
    took = _seconds(body.start_time_unix_nano, body.end_time_unix_nano)
    error = f": {text.folded(without_advice(body.error_text))}" if body.error_text else ""
    return f"{text.word(common.TransferResult, body.result)} after {took}, {body.waiters_total} waited{error}"


def _lease_closed(body: events.LeaseClosed) -> str:
    return f"{text.count(body.blocks, 'block')}: {text.word(events.LeaseEnding, body.ending)}"


def _deciding(body: events.LoadOutcome, policies: Policies) -> Policies:
    """Return the policy that sets the action of the outcome's channel; all if none does."""
    field = f"{text.word(common.Channel, body.channel)}LoadFailure.action"
    return [policy for policy in policies if field in policy.fields] or policies


def _policy_applied(body: events.PolicyApplied, policies: Policies, previous: Policies) -> str:
    if not body.accepted:
        # An order's error names it; it has no hash.
        what = "" if body.cause == "order" else f"{text.short_policies(policies, body.hash)}: "
        return f"refused {what}{text.folded(body.error)}"
    before = text.short_policies(previous, body.previous_hash)
    return f"{before} → {text.short_policies(policies, body.hash)} ({body.cause})"


def _quarantine_changed(body: events.QuarantineChanged) -> str:
    before, after = (text.quarantine_state(state) for state in (body.previous, body.state))
    return f"{before} → {after} ({body.reason})"


def _eplb_rebalance(body: events.EplbRebalance) -> str:
    # Importing the package costs 30 ms, and only this event needs it.
    from penstock.agent.batch import balancedness  # noqa: PLC0415

    took, pause = (
        text.span_of_time(min(nano, body.duration_nano) / 1e9)
        for nano in (body.duration_nano, body.pause_nano)
    )
    remote = sum(layer.experts_received_remotely for layer in body.layers)
    local = sum(layer.experts_received_locally for layer in body.layers)
    parts = [
        f"{text.word(common.TransferResult, body.result)} ({text.word(events.EplbTrigger, body.trigger)})",
        f"{len(body.layers)} layers, {remote} experts from other ranks, {local} moved locally",
        f"took {took}, pause {pause}",
    ]
    ratios = [balancedness(body, when) for when in ("before", "after")]
    if shown := " → ".join(f"{ratio:.2f}" for ratio in ratios if ratio is not None):
        parts.append(f"balancedness {shown}")
    if body.error_text:
        parts.append(text.folded(": ".join(filter(None, (body.error_class, body.error_text)))))
    return ", ".join(parts)


def _source_lost(body: events.SourceLost) -> str:
    return f"{body.process} vanished with {body.open_deferrals} open deferrals"


def _source_stopped(body: events.SourceStopped) -> str:
    return f"{body.process} stopped with its server"


def _server_stopping(body: events.ServerStopping) -> str:
    if not body.timeout_nano:
        return "server stops, requests in flight are aborted"
    return f"server stops, requests in flight have {text.span_of_time(body.timeout_nano / 1e9)} to end"


def _forgotten(body: events.Forgotten) -> str:
    what = "peer" if body.HasField("peer") else "engine"
    return f"{what} forgotten, {f'by {body.author}' if body.author else 'disconnected for --retire-after'}"


def _transfer_delayed(body: events.TransferDelayed) -> str:
    return f"held up {text.span_of_time(body.delay_nano / 1e9)} by {body.caused_by_peer.address or 'unknown'}"


def _answer_suspected(body: events.AnswerSuspected) -> str:
    what = text.word(events.SuspectReason, body.reason)
    if body.reason == events.SUSPECT_REASON_NAN:
        return f"{what}: {body.nans_in_logits} of its logits were NaN; the answer may be wrong"
    cause = f"{text.word(common.FailureMode, body.mode)}, {text.word(common.ErrorType, body.error_type)}"
    return f"{what}: {cause}, and nothing was done about it; the answer may be wrong"


def _blocks_pinned(body: events.BlocksPinned) -> str:
    stay = "stays" if body.blocks == 1 else "stay"
    then = "released" if body.released else f"{stay} pinned: the peer may still write"
    return f"{text.count(body.blocks, 'block')} {then}"


def _kv_caches_released(body: events.KvCachesReleased) -> str:
    if body.restored:
        return f"{body.connector} has its KV caches back: peers can read again"
    connected = f", {text.count(body.peers, 'peer')} shake hands again afterwards" if body.peers else ""
    return f"vLLM sleeps and takes its KV caches from {body.connector}: no peer can read{connected}"


def _rotation_changed(body: events.RotationChanged) -> str:
    if body.out:
        return "out of rotation by order: the readiness answers 503"
    return "back in rotation: the readiness answers as vLLM's health check"


_WORDS: dict[str, Callable[[Any], str]] = {
    "transfer_failure": _transfer_failure,
    "deferral_start": _deferral_start,
    "deferral_end": _deferral_end,
    "request_closed": _request_closed,
    "handshake": _handshake,
    "lease_closed": _lease_closed,
    "quarantine_changed": _quarantine_changed,
    "source_lost": _source_lost,
    "source_stopped": _source_stopped,
    "server_stopping": _server_stopping,
    "forgotten": _forgotten,
    "transfer_delayed": _transfer_delayed,
    "blocks_pinned": _blocks_pinned,
    "kv_caches_released": _kv_caches_released,
    "rotation_changed": _rotation_changed,
    "answer_suspected": _answer_suspected,
}


def event_rows(items: Iterable[admin.LoggedEvent], now: float, *, wide: bool = False) -> Table:
    """Return the table of events; *wide*: with their whole text."""
    return Table(
        ("AGE", "ENGINE", "KIND", "REQUEST", "PEER", "WHAT", "PROCESS", "POSITION"),
        [
            (
                text.ago(item.event.time_unix_nano, now).removesuffix(" ago"),
                text.engine(item.key),
                item.event.WhichOneof("body") or "unknown",
                item.event.request_id or text.NONE,
                event_peer(item.event),
                logged_words(item, _WIDE_CHARACTERS) if wide else logged_words(item),
                item.process,
                f"{item.batch}/{item.index}",
            )
            for item in items
        ],
        wide=2,
    )
