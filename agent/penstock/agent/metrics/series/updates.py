"""Which series an entry of the log belongs to: the one mapping from wire messages to metrics.

| entry | series |
|---|---|
| `TransferSamples` | `transfers_total`; with result ok also `transfer_duration_seconds`, `transfer_end_uncertainty_seconds_total`, `transfer_size_bytes` |
| `ProbeSamples` | `cache_probes_total` |
| `TransferFailure` | `transfer_failures_total`; with mode late_read also `late_reads_total` |
| `RequestClosed` | `verified_transfers_total` |
| `LoadOutcome` | `load_outcomes_total`; with outcome recomputed also `recomputed_tokens_total`, `recomputed_items_total` |
| `DeferralEnd`, the first of each deferral (see ``batch_counting``) | `deferrals_total`, `request_deferred_time_seconds` |
| `RequestClosed` with gates and a first token | `time_to_first_token_seconds`, at each gate |
| `Handshake` | `handshake_duration_seconds`, `handshake_queue_seconds` |
| `TransferDelayed` | `collateral_delay_seconds` |
| `PolicyApplied` | `policy_updates_total` |
| `QuarantineChanged` to open | `quarantines_total` |
| `EplbRebalance` | `eplb_*` |
| `AnswerSuspected` | `suspect_answers_total`; what failures say: see ``batch_counting`` |
| `Drop`, `Tombstone` | `events_dropped_total` |
| `GuardError` | `guard_errors_total` |
| every event and sample | `events_total` |

A failed transfer has no duration and no size here: how long a peer takes must not change with how often it
fails. A peer without an address is ``unknown``. An event of a newer engine is counted with kind ``unknown``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.agent.batch import GATES, balancedness, gate_times
from penstock.agent.metrics.catalogue import from_log
from penstock.proto.names import NANOS, label, labels
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import events_pb2 as events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock.agent.batch import TransferSample
    from penstock.agent.metrics.catalogue import Metric

UNKNOWN = "unknown"
VERIFICATION_RESULTS = ("ok", "mismatch", "unverified")
"""Fields of ``Verification`` and labels of `VERIFIED_TRANSFERS`."""

# The words of the most frequent event's enums, by number.
REASONS = labels(common.DeferralReason)
ENDINGS = labels(common.DeferralEnding)


class Update(NamedTuple):
    """What one entry does to one series.

    Attributes:
        value: added to a counter, observed by a histogram; in state units (`Metric.scale`).

    """

    metric: Metric
    labels: tuple[str, ...]
    value: int


def boolean(value: bool) -> str:
    """Return the label of a boolean."""
    return "true" if value else "false"


def peer_of(peer: common.Peer) -> str:
    """Return the label of a peer."""
    return peer.address or UNKNOWN


def _elapsed(start: int, end: int) -> int:
    """Return the nanoseconds between two clock readings; 0 if the clock was set back."""
    return max(0, end - start)


def transfer_key(
    channel: int, connector: str, direction: int, peer: str, result: int
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the labels of a transfer in `TRANSFERS`, `TRANSFER_DURATION` and `TRANSFER_SIZE`."""
    channel_word, direction_word = label(common.Channel, channel), label(common.Direction, direction)
    peer = peer or UNKNOWN
    return (
        (channel_word, connector, direction_word, peer, label(common.TransferResult, result)),
        (channel_word, peer),
        (channel_word, direction_word),
    )


def transfer_updates(sample: TransferSample) -> Iterator[Update]:
    """Yield what a completed transfer does."""
    count, duration, size = transfer_key(
        sample.channel, sample.connector, sample.direction, sample.peer, sample.result
    )
    yield Update(from_log.TRANSFERS, count, 1)
    if sample.result == common.TRANSFER_RESULT_OK:
        # 0 is not known, and no observation; nor is what leads below 1970.
        if 0 < sample.duration_nano <= sample.end_time_unix_nano:
            yield Update(from_log.TRANSFER_DURATION, duration, sample.duration_nano)
            if sample.unseen_nano:
                yield Update(from_log.TRANSFER_END_UNCERTAINTY, duration, sample.unseen_nano)
        if sample.bytes:
            yield Update(from_log.TRANSFER_SIZE, size, sample.bytes)


def event_updates(kind: str, event: events.Event) -> Iterable[Update]:
    """Return what an event with the body *kind* does, without its share in `EVENTS`."""
    rule = _RULES.get(kind)
    return () if rule is None else rule(event, getattr(event, kind))


def _transfer_failure(event: events.Event, body: events.TransferFailure) -> Iterator[Update]:
    peer = peer_of(body.peer)
    labels = (
        label(common.Channel, body.channel),
        body.connector,
        label(common.FailureMode, body.mode),
        label(common.ErrorType, body.error_type),
        peer,
        boolean(event.rehearsal),
    )
    yield Update(from_log.TRANSFER_FAILURES, labels, 1)
    if body.mode == common.FAILURE_MODE_LATE_READ:
        yield Update(from_log.LATE_READS, (peer,), 1)


def _load_outcome(event: events.Event, body: events.LoadOutcome) -> Iterator[Update]:
    channel, mode, peer = (
        label(common.Channel, body.channel),
        label(common.FailureMode, body.mode),
        peer_of(body.peer),
    )
    outcome, decided_by = label(common.Outcome, body.outcome), label(common.DecidedBy, body.decided_by)
    yield Update(
        from_log.LOAD_OUTCOMES, (channel, outcome, decided_by, mode, peer, boolean(event.rehearsal)), 1
    )
    if body.outcome == common.OUTCOME_RECOMPUTED:
        lost = (channel, mode, peer, boolean(event.rehearsal))
        yield Update(from_log.RECOMPUTED_TOKENS, lost, body.tokens_recomputed)
        if body.items_recomputed:
            yield Update(from_log.RECOMPUTED_ITEMS, lost, body.items_recomputed)


def _deferral_end(event: events.Event, body: events.DeferralEnd) -> Iterable[Update]:
    # With tables and without a generator: every request that waits has one.
    reason = REASONS.get(body.reason, UNKNOWN)
    ended = Update(from_log.DEFERRALS, (reason, ENDINGS.get(body.ending, UNKNOWN), peer_of(body.peer)), 1)
    start = body.start_time_unix_nano
    if not start:
        return (ended,)
    return ended, Update(from_log.DEFERRED_TIME, (reason,), _elapsed(start, event.time_unix_nano))


def _request_closed(event: events.Event, body: events.RequestClosed) -> Iterable[Update]:
    return [*_gates(event, body), *_verifications(body)]


def _gates(event: events.Event, body: events.RequestClosed) -> Iterable[Update]:
    times = gate_times(body)
    # None is not known; without a first token they are no time to it; no time leads below 1970.
    if times is None or not times.first_token or not 0 < times.total_nano <= event.time_unix_nano:
        return ()
    return [
        Update(from_log.TIME_TO_FIRST_TOKEN, (gate,), nano)
        for gate, nano in zip(GATES, times.nano, strict=True)
    ]


def _verifications(body: events.RequestClosed) -> Iterator[Update]:
    for found in body.verifications:
        labels = (label(common.Channel, found.channel), peer_of(found.peer))
        for result in VERIFICATION_RESULTS:
            if count := getattr(found, result):
                yield Update(from_log.VERIFIED_TRANSFERS, (*labels, result), count)


def _handshake(_event: events.Event, body: events.Handshake) -> Iterator[Update]:
    labels = (peer_of(body.peer),)
    start = body.start_time_unix_nano
    if start:
        yield Update(from_log.HANDSHAKE_DURATION, labels, _elapsed(start, body.end_time_unix_nano))
        if body.queued_time_unix_nano:
            yield Update(from_log.HANDSHAKE_QUEUE, labels, _elapsed(body.queued_time_unix_nano, start))


def _transfer_delayed(event: events.Event, body: events.TransferDelayed) -> Iterator[Update]:
    # Not HANDSHAKE_QUEUE: the wait of the delayed handshake itself has its own event.
    labels = (label(common.Channel, body.channel), peer_of(body.caused_by_peer))
    if body.delay_nano <= event.time_unix_nano:
        yield Update(from_log.COLLATERAL_DELAY, labels, body.delay_nano)


def _policy_applied(_event: events.Event, body: events.PolicyApplied) -> Iterator[Update]:
    yield Update(
        from_log.POLICY_UPDATES, ("accepted" if body.accepted else "rejected", body.cause or UNKNOWN), 1
    )


def _quarantine_changed(event: events.Event, body: events.QuarantineChanged) -> Iterator[Update]:
    opened = events.QUARANTINE_STATE_OPEN
    if body.state == opened and body.previous != opened:
        labels = (peer_of(body.peer), body.reason or UNKNOWN, boolean(event.rehearsal))
        yield Update(from_log.QUARANTINES, labels, 1)


def _answer_suspected(event: events.Event, body: events.AnswerSuspected) -> Iterator[Update]:
    if not event.rehearsal:
        yield Update(from_log.SUSPECT_ANSWERS, (label(events.SuspectReason, body.reason),), 1)


def _eplb_rebalance(event: events.Event, body: events.EplbRebalance) -> Iterator[Update]:
    trigger = label(events.EplbTrigger, body.trigger)
    yield Update(from_log.EPLB_REBALANCES, (trigger, label(common.TransferResult, body.result)), 1)
    if body.duration_nano <= event.time_unix_nano:
        yield Update(from_log.EPLB_REBALANCE_DURATION, (), body.duration_nano)
        # A part of it.
        yield Update(from_log.EPLB_PAUSE, (), min(body.pause_nano, body.duration_nano))
    for when in ("before", "after"):
        ratio = balancedness(body, when)
        if ratio is not None:
            yield Update(from_log.EPLB_BALANCEDNESS, (when,), round(ratio * NANOS))
    for source, field in _EXPERT_SOURCES:
        yield Update(from_log.EPLB_EXPERTS, (source,), sum(getattr(layer, field) for layer in body.layers))


_EXPERT_SOURCES = (
    ("unchanged", "experts_unchanged"),
    ("local", "experts_received_locally"),
    ("remote", "experts_received_remotely"),
)

_RULES: dict[str, Callable[[events.Event, Any], Iterable[Update]]] = {
    "transfer_failure": _transfer_failure,
    "load_outcome": _load_outcome,
    "deferral_end": _deferral_end,
    "request_closed": _request_closed,
    "handshake": _handshake,
    "transfer_delayed": _transfer_delayed,
    "policy_applied": _policy_applied,
    "quarantine_changed": _quarantine_changed,
    "eplb_rebalance": _eplb_rebalance,
    "answer_suspected": _answer_suspected,
}

COUNTED = frozenset(_RULES)
"""Kinds of events that have a share in more than `EVENTS`."""
