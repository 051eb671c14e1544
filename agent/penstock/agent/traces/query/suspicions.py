"""Whether the answer of a request may be wrong, and why: from what the journal says about it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.traces.query.words import peer as _peer
from penstock.agent.traces.query.words import words as _words
from penstock.agent.traces.spans import attributes, ends_load, request_loads
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import events_pb2 as events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock.agent.traces.spans import EventEntry, Load, RequestFacts
    from penstock.proto.v1.events_pb2 import TransferFailure

    # A sentence without its full stop, where the peer of the request has loaded other weights than its engine; else empty.
    WeightsLookup = Callable[[RequestFacts], str]

# vLLM's finish reasons of answers that were not delivered, or not to their end.
_ABORTED = "abort"
_NOT_DELIVERED = frozenset(("", "error"))
# With these a read had begun.
_OF_A_READ = frozenset(
    (common.FAILURE_MODE_TRANSFER, common.FAILURE_MODE_EXCEPTION, common.FAILURE_MODE_LOAD)
)
_DONE = frozenset((common.OUTCOME_RECOMPUTED, common.OUTCOME_FAILED))


def no_weights(_: RequestFacts) -> str:
    """Know of no engine that has loaded other weights."""
    return ""


class Suspicion(NamedTuple):
    """Why an answer may be wrong.

    Attributes:
        reason: a ``SuspectReason``.
        evidence: a sentence without its full stop.
        time_unix_nano: when it was seen.
        rehearsal: whether a drill caused it.

    """

    reason: events.SuspectReason
    evidence: str
    time_unix_nano: int
    rehearsal: bool = False


def is_late_read(failure: TransferFailure) -> bool:
    """Return whether the blocks of a request were read after they had been freed; it is the owner of the blocks that reports it."""
    return failure.mode == common.FAILURE_MODE_LATE_READ and failure.direction == common.DIRECTION_SEND


def is_late_write(failure: TransferFailure) -> bool:
    """Return whether a peer wrote into blocks that no request waited for."""
    return failure.mode == common.FAILURE_MODE_LATE_READ and failure.direction == common.DIRECTION_RECEIVE


def may_spoil(failure: TransferFailure) -> bool:
    """Return whether the request of a failure is worth a look."""
    receives = failure.direction == common.DIRECTION_RECEIVE
    return receives and (is_corrupt(failure) or (failure.channel == common.CHANNEL_KV and ends_load(failure)))


def is_corrupt(failure: TransferFailure) -> bool:
    """Return whether what arrived is not what was sent."""
    return failure.mode == common.FAILURE_MODE_TRANSFER and failure.error_type == common.ERROR_TYPE_CORRUPT


def suspicions(
    facts: RequestFacts, late: Iterable[EventEntry] = (), weights: WeightsLookup = no_weights
) -> list[Suspicion]:
    """Return why the answer of a request may be wrong; nothing if it was not delivered, or was computed anew.

    Args:
        facts: what the journal says about the request.
        late: late reads of the blocks that this request was to read, as their owner reports them.
        weights: what is known of engines that have loaded other weights.

    """
    found = [
        *_late_reads(facts, late),
        *_other_weights(facts, weights),
        *_of_engine(facts),
        *_failed_reads(facts),
        *_used_mismatches(facts),
    ]
    # The engine's word and the agent's own finding are one: the first of a reason stays.
    by_reason: dict[int, Suspicion] = {}
    for each in sorted(found, key=lambda each: each.time_unix_nano):
        present = by_reason.setdefault(each.reason, each)
        if present.rehearsal and not each.rehearsal:
            by_reason[each.reason] = each
    return list(by_reason.values())


def _late_reads(facts: RequestFacts, late: Iterable[EventEntry]) -> Iterator[Suspicion]:
    if not (_may_have_answered(facts) and _has_read(facts)) or _is_computed_anew(facts):
        return
    for entry in late:
        yield Suspicion(
            events.SUSPECT_REASON_LATE_READ,
            "it read blocks that their owner had already freed; they may have held another request's data",
            entry.event.time_unix_nano,
            entry.event.rehearsal,
        )


def _other_weights(facts: RequestFacts, weights: WeightsLookup) -> Iterator[Suspicion]:
    """Yield that a request has read blocks that were computed with other weights: no handshake compares these."""
    evidence = weights(facts)
    delivered = facts.closing is not None and _may_have_answered(facts) and _has_read(facts)
    if evidence and delivered and not _is_computed_anew(facts):
        yield Suspicion(events.SUSPECT_REASON_OTHER_WEIGHTS, evidence, facts.end_unix_nano)


def _of_engine(facts: RequestFacts) -> Iterator[Suspicion]:
    for entry in facts.suspected:
        body = entry.event.answer_suspected
        if body.reason == events.SUSPECT_REASON_NAN:
            evidence = f"{body.nans_in_logits:,} of its logits were NaN"
        elif body.reason == events.SUSPECT_REASON_FAILED_READ:
            evidence = _failed_words(body.peer, _words(body.mode, body.error_type))
        elif body.reason == events.SUSPECT_REASON_OTHER_ENGINE:
            evidence = _other_engine_words(body)
        else:
            evidence = f"its engine suspects it ({attributes.enum_word(events.SuspectReason, body.reason) or 'a newer reason'})"
        yield Suspicion(body.reason, evidence, entry.event.time_unix_nano, entry.event.rehearsal)


def _failed_reads(facts: RequestFacts) -> Iterator[Suspicion]:
    closing = facts.closing
    if closing is None or not _may_have_answered(facts) or closing.finish_reason == _ABORTED:
        return
    for load in request_loads(facts):
        if load.sending or not load.failures or _is_dealt_with(load):
            continue
        failures = [entry.event.transfer_failure for entry in load.failures]
        corrupt = any(map(is_corrupt, failures))
        if not corrupt and not (load.channel == common.CHANNEL_KV and failures[0].mode in _OF_A_READ):
            continue
        reason = events.SUSPECT_REASON_MISMATCH if corrupt else events.SUSPECT_REASON_FAILED_READ
        evidence = (
            f"what it read from {_peer(load.peer)} is not what was sent, and nothing was done about it"
            if corrupt
            else _failed_words(load.peer, _words(failures[0].mode, failures[0].error_type))
        )
        time = load.failures[0].event.time_unix_nano
        yield Suspicion(reason, evidence, time, all(entry.event.rehearsal for entry in load.failures))


def _used_mismatches(facts: RequestFacts) -> Iterator[Suspicion]:
    """Yield blocks that are not what was sent and were used all the same, as a policy that only observes has it."""
    closing = facts.closing
    if closing is None or not _may_have_answered(facts) or closing.finish_reason == _ABORTED:
        return
    for entry in facts.failures:
        failure = entry.event.transfer_failure
        if failure.used and is_corrupt(failure) and failure.direction == common.DIRECTION_RECEIVE:
            yield Suspicion(
                events.SUSPECT_REASON_MISMATCH,
                f"what it read from {_peer(failure.peer)} is not what was sent, and it was used: the policy only observes",
                entry.event.time_unix_nano,
                entry.event.rehearsal,
            )


def _failed_words(peer: common.Peer, cause: str) -> str:
    return f"its load from {_peer(peer)} failed ({cause}), and it was neither recomputed nor failed"


def _other_engine_words(body: events.AnswerSuspected) -> str:
    """Return which engine was read in the place of which."""
    whose = (
        "another engine" if body.named_owner == common.ADDRESS_OWNER_OTHER else "who is there is not known"
    )
    return (
        f"it read blocks of {_peer(body.peer)}, although it named {body.named.address} ({whose}): both go by the connector "
        "engine id that the request gave"
    )


def _is_dealt_with(load: Load) -> bool:
    """Return whether something was done about a failed load; that its request ended before, vLLM says of itself."""
    outcome = load.outcome
    return outcome is not None and (outcome.outcome in _DONE or outcome.decided_by != common.DECIDED_BY_VLLM)


def _may_have_answered(facts: RequestFacts) -> bool:
    """Return whether the client has got a token, or may still get one."""
    closing = facts.closing
    if closing is None:
        return not facts.lost_unix_nano
    return bool(closing.output_tokens) and closing.finish_reason not in _NOT_DELIVERED


def _has_read(facts: RequestFacts) -> bool:
    """Return whether a request has read something: one whose prompt is cached only says that it needs nothing."""
    closing = facts.closing
    if closing is None or closing.external_cached_tokens:
        return True
    return any(
        entry.sample.channel == common.CHANNEL_KV
        and entry.sample.direction == common.DIRECTION_RECEIVE
        and entry.sample.result == common.TRANSFER_RESULT_OK
        for entry in facts.samples
    )


def _is_computed_anew(facts: RequestFacts) -> bool:
    """Return whether all that was loaded was computed again."""
    local = facts.closing.local_cached_tokens if facts.closing is not None else 0
    return any(
        outcome.channel == common.CHANNEL_KV
        and (
            outcome.outcome == common.OUTCOME_FAILED
            or (outcome.outcome == common.OUTCOME_RECOMPUTED and outcome.tokens_kept <= local)
        )
        for outcome in (entry.event.load_outcome for entry in facts.outcomes)
    )
