"""Explains a request in one sentence per cause: request, peer, cause, action, cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent import limits
from penstock.agent.batch import is_clean_up
from penstock.agent.errors import without_advice
from penstock.agent.traces.query.actions import HASH_LENGTH, describe_action, observed_wait, why_without
from penstock.agent.traces.query.encoders import encoder_sentences
from penstock.agent.traces.query.search import find_request_traces
from penstock.agent.traces.query.suspicions import is_late_read, no_weights, suspicions
from penstock.agent.traces.query.wait_parts import (
    first_token_words,
    lease_clauses,
    readers_of,
    released_words,
    split_words,
    unusual_lease,
    wait_parts,
    waited_words,
)
from penstock.agent.traces.query.words import channel as _channel
from penstock.agent.traces.query.words import counted as _counted
from penstock.agent.traces.query.words import duration as _duration
from penstock.agent.traces.query.words import peer as _peer
from penstock.agent.traces.query.words import size as _size
from penstock.agent.traces.query.words import took as _took
from penstock.agent.traces.query.words import words as _words
from penstock.agent.traces.spans import attributes, ends_load, no_policies, request_loads
from penstock.proto.names import NANOS
from penstock.proto.v1 import admin_pb2, common_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.agent.journal import Reader
    from penstock.agent.pairs import EncoderStates
    from penstock.agent.traces.query.search import RequestTrace
    from penstock.agent.traces.query.suspicions import WeightsLookup
    from penstock.agent.traces.query.wait_parts import UsualLease
    from penstock.agent.traces.spans import EventEntry, Load, PolicyLookup, RequestFacts
    from penstock.proto.v1.events_pb2 import LoadOutcome, RequestClosed, TransferFailure

# Items that a sentence names: more are no help to who reads it.
_MOST_ITEMS = 4
# Roles that say nothing about an engine.
_UNNAMED_ROLES = frozenset(("", "unspecified", "unknown", "both"))
_CLEAN_UP = "vLLM's own clean-up request; ignore"


def explain_request(
    reader: Reader,
    request_id: str,
    policies: PolicyLookup = no_policies,
    weights: WeightsLookup = no_weights,
    queued: Callable[[str, str], str] = lambda _server, _id: "",
    encoders: EncoderStates | None = None,
) -> admin_pb2.Explanation:
    """Explain what happened to a request and to its counterpart on the other engine.

    Args:
        reader: of the journal.
        request_id: vLLM's internal or the client's.
        policies: names those that decided.
        weights: what is known of engines that have loaded other weights.
        queued: returns what a scheduler does now with a request, by server and id, as the rest of a sentence; or "".
        encoders: that are known; None where engines are not asked.

    Raises:
        NotFoundError: no request has this id, or several unrelated ones.

    """
    requests = find_request_traces(reader, request_id)
    explanation = admin_pb2.Explanation(
        request_id=requests[0].key.request_id,
        trace_id=requests[0].trace_id,
        sentences=[
            sentence
            for request in requests
            for sentence in (
                *request_sentences(
                    request, unusual_lease(reader, request), policies, readers_of(request, requests)
                ),
                *_suspect_sentences(request, requests, weights),
                *(encoder_sentences(request, requests, encoders) if encoders is not None else ()),
                *_queued_sentences(request, queued),
            )
        ],
        unreadable_batches=reader.unreadable,
    )
    for request in requests:
        parts = wait_parts(request.facts)
        whole = sum(part.nano for part in parts)
        for part in parts:
            added = explanation.wait_parts.add(
                request_id=request.key.request_id, part=part.name, share=part.nano / whole
            )
            added.duration.FromNanoseconds(part.nano)
    return explanation


def _queued_sentences(request: RequestTrace, queued: Callable[[str, str], str]) -> Iterator[str]:
    """Yield what a scheduler does now with a request that has not ended; the log may know more than its last snapshot."""
    if request.facts.closing is not None or request.facts.lost_unix_nano:
        return
    clause = queued(request.source.key.server, request.key.request_id)
    if clause:
        yield f"{_subject(request)} {clause}."


def _suspect_sentences(
    request: RequestTrace, requests: Iterable[RequestTrace], weights: WeightsLookup
) -> Iterator[str]:
    """Yield a sentence for each reason why the answer may be wrong; *requests* has the other side, where that is known."""
    name, closing = request.key.request_id, request.facts.closing
    remote = closing.remote_request_id if closing is not None else ""
    late = [
        entry
        for other in requests
        if remote and other.key.request_id == remote
        for entry in other.facts.failures
        if is_late_read(entry.event.transfer_failure)
    ]
    for each in suspicions(request.facts, late, weights):
        drill = " in a drill" if each.rehearsal else ""
        yield f"The answer to {name} is suspect{drill}: {each.evidence}."
    if any(is_late_read(entry.event.transfer_failure) for entry in request.facts.failures):
        yield (
            f"An answer that was computed from the blocks of {name} is suspect; 'agentctl get suspects' names it, "
            "at the agent of the engine that read them or at a relay."
        )


def request_sentences(
    request: RequestTrace,
    usual: UsualLease | None = None,
    policies: PolicyLookup = no_policies,
    readers: Sequence[RequestFacts] = (),
) -> Iterator[str]:
    """Yield the sentences about one request, at least one.

    Args:
        request: what the journal says about it.
        usual: the leases of its engine, if the request held one for unusually long.
        policies: names those that decided.
        readers: the requests that its leases were for, as far as they are known.

    """
    facts = request.facts
    troubled = False
    for clause in _troubles(facts, usual, policies, readers):
        troubled = True
        yield f"{_subject(request)} {clause}."
    if not troubled:
        yield f"{_subject(request)} {_good(facts, readers)}."
    for reason in (entry.event.deferral_end.observed_reason for entry in facts.deferral_ends):
        if reason:
            yield f"{_subject(request)} {observed_wait(reason)}."
    token = "" if _cleans_up(facts) else first_token_words(facts)
    if token:
        yield f"{_subject(request)} {token}."
    if request.truncated:
        yield f"The log has more entries of {request.key.request_id} than one call reads; the oldest are missing here."


def _subject(request: RequestTrace) -> str:
    source = request.source
    role = "" if source.role in _UNNAMED_ROLES else f"{source.role} "
    return f"Request {request.key.request_id} on {role}engine {source.key}"


def _troubles(
    facts: RequestFacts, usual: UsualLease | None, policies: PolicyLookup, readers: Sequence[RequestFacts]
) -> Iterator[str]:
    yield from _failures(facts, policies)
    # A load that was given up meanwhile says itself who held it up.
    told = {entry.event.transfer_failure.caused_by_peer.address for entry in facts.failures} - {""}
    for delay in (entry.event.transfer_delayed for entry in facts.delays):
        if delay.caused_by_peer.address in told:
            continue
        yield (
            f"waited {_duration(facts.clamp(delay.delay_nano))} longer for {_peer(delay.peer)}"
            f" because the handshake with {_peer(delay.caused_by_peer)} was in the way"
        )
    yield from _pinned(facts)
    yield from lease_clauses(facts, usual, readers)
    if facts.lost_unix_nano:
        yield "ended with its engine, which vanished or was stopped"
    elif facts.closing is None:
        yield _unfinished(facts)
    elif not (facts.failures or facts.outcomes) and facts.deferred_nano >= limits.LONG_WAIT_SECONDS * NANOS:
        yield f"{waited_words(facts)}{_loads(facts)}{_end(facts, split=False)}"


def _failures(facts: RequestFacts, policies: PolicyLookup) -> Iterator[str]:
    failed = [load for load in request_loads(facts) if load.failed]
    for load in failed:
        yield _failed_load(facts, load, policies)
    told = {(load.channel, load.attempt) for load in failed if not load.sending}
    for entry in facts.outcomes:
        outcome = entry.event.load_outcome
        if (outcome.channel, max(outcome.attempt, 1)) not in told:
            yield (
                f"did without its {_channel(outcome.channel)} load from {_peer(outcome.peer)}"
                f"{_drill([entry])} ({why_without(outcome)}): {_action(facts, outcome, policies)}{_end(facts)}"
            )
    for failure in (entry.event.transfer_failure for entry in facts.failures):
        if not ends_load(failure):
            used = ", and used what it had loaded" if failure.used else ""
            yield f"had a failure with {_peer(failure.peer)} ({_cause(failure)}){used}{_end(facts)}"


def _pinned(facts: RequestFacts) -> Iterator[str]:
    """Yield a clause for blocks that could not be freed; a release says since when."""
    released = {
        (pin.channel, pin.since_time_unix_nano): entry.event.time_unix_nano
        for entry in facts.pinned
        if (pin := entry.event.blocks_pinned).released
    }
    for entry in facts.pinned:
        pin = entry.event.blocks_pinned
        if pin.released:
            continue
        end = released.get((pin.channel, pin.since_time_unix_nano))
        begin = pin.since_time_unix_nano or entry.event.time_unix_nano
        then = (
            "they are not released yet"
            if end is None
            else f"they were released after {_duration(end - begin)}"
        )
        yield f"left {_counted(pin.blocks, 'block')} pinned because {_peer(pin.peer)} may still write to them; {then}"


def _action(facts: RequestFacts, outcome: LoadOutcome, policies: PolicyLookup) -> str:
    entry = next(entry for entry in facts.outcomes if entry.event.load_outcome == outcome)
    return describe_action(outcome, policies(entry.source, outcome.policy_hash, entry.event.time_unix_nano))


def _failed_load(facts: RequestFacts, load: Load, policies: PolicyLookup) -> str:
    failure = load.failure
    cause = "a rank reported an error" if failure is None else _cause(failure)
    again = f" (attempt {load.attempt})" if load.attempt > 1 else ""
    rehearsal = _drill(load.failures)
    done = _no_action(facts) if load.outcome is None else _action(facts, load.outcome, policies)
    return (
        f"could not {_move(load)} {_peer(load.peer)}{again}{rehearsal}"
        f" ({cause}): {done}; it was under way for {_under_way(facts, load)}{_end(facts)}"
    )


def _no_action(facts: RequestFacts) -> str:
    """Explain why there is no outcome."""
    closing = facts.closing
    if _cleans_up(facts):
        return _CLEAN_UP
    early = closing is not None and not closing.scheduled_time_unix_nano and not facts.deferrals
    return "the request had ended before its first step" if early else "no action was reported"


def _cleans_up(facts: RequestFacts) -> bool:
    return facts.closing is not None and is_clean_up(facts.closing)


def _under_way(facts: RequestFacts, load: Load) -> str:
    """Return how long a load took, and how much of that came after the end of its request."""
    whole = load.end_unix_nano - load.start_unix_nano
    after = min(load.end_unix_nano - facts.end_unix_nano, whole) if facts.closed is not None else 0
    return _duration(whole) + (f", {_duration(after)} of that after the request's end" if after > 0 else "")


def _move(load: Load) -> str:
    channel = _channel(load.channel)
    if load.sending:
        return f"send its {channel} state to"
    return f"load its {channel} state{_items(load)} from"


def _items(load: Load) -> str:
    """Return the items that were not loaded; empty for a load that has none."""
    items = sorted({entry.event.transfer_failure.item for entry in load.failures} - {""})
    if not items:
        return ""
    shown = ", ".join(item[:HASH_LENGTH] for item in items[:_MOST_ITEMS])
    more = f" and {len(items) - _MOST_ITEMS} more" if len(items) > _MOST_ITEMS else ""
    return f" (item{'s' if len(items) > 1 else ''} {shown}{more})"


def _drill(entries: Iterable[EventEntry]) -> str:
    return " in a drill" if attributes.rehearsal(entries) else ""


def _cause(failure: TransferFailure) -> str:
    what = _words(failure.mode, failure.error_type)
    if failure.mode == common_pb2.FAILURE_MODE_COLLATERAL:
        what += f", caused by {_other_handshake(failure)}"
    if failure.incompatibility.factors:
        what += f", they differ in {', '.join(failure.incompatibility.factors)}"
    text = without_advice(failure.error_text) or failure.error_class
    return f"{what}: {text.rstrip('.')}" if text else what


def _other_handshake(failure: TransferFailure) -> str:
    """Name the handshake that a load fell victim to, as far as it is known."""
    request, peer = failure.caused_by_request_id, failure.caused_by_peer.address
    if not peer:
        return f"a handshake that {f'request {request}' if request else 'another request'} began"
    return f"the handshake with {peer}{f' that request {request} began' if request else ''}"


def _good(facts: RequestFacts, readers: Sequence[RequestFacts]) -> str:
    clauses = [_loaded(load, facts) for load in request_loads(facts)]
    for entry in facts.leases:
        blocks = _counted(entry.event.lease_closed.blocks, "block")
        clauses.append(f"kept {blocks} for its reader, {released_words(facts, entry.event, readers)}")
    closing = facts.closing
    if not clauses and closing is not None:
        if is_clean_up(closing):
            return f"is {_CLEAN_UP}{_end(facts)}"
        if not closing.scheduled_time_unix_nano:
            return f"was not scheduled{_end(facts)}"
        clauses.extend(_misses(facts))
        clauses.append(f"computed {_counted(closing.prompt_tokens, 'prompt token')}")
    return f"{' and '.join(clauses)}, without trouble{_end(facts)}"


def _misses(facts: RequestFacts) -> list[str]:
    """Name the encoders that were asked and did not have the output."""
    missed = [e.probe.peer for e in facts.probes if e.probe.result == common_pb2.PROBE_RESULT_MISS]
    if not missed:
        return []
    peers = ", ".join(sorted({peer or "an unknown peer" for peer in missed}))
    return [
        f"asked {peers} for {_counted(len(missed), 'encoder output')} that {'was' if len(missed) == 1 else 'were'} not there"
    ]


def _loaded(load: Load, facts: RequestFacts) -> str:
    closing = facts.closing
    external = closing.external_cached_tokens if closing is not None else 0
    size = load.bytes
    known = [_counted(external, "token")] if external and load.channel == common_pb2.CHANNEL_KV else []
    # 0 is not known.
    known += [_size(size)] if size else []
    extent = f" ({', '.join(known)})" if known else ""
    took = _took(load.end_unix_nano - load.start_unix_nano, load.unseen_nano) + _verified(load, closing)
    verb, where = ("sent", "to") if load.sending else ("loaded", "from")
    return f"{verb} {_channel(load.channel)} state{extent} {where} {_peer(load.peer)} in {took}"


def _verified(load: Load, closing: RequestClosed | None) -> str:
    """Return what the comparison of a load with the sender's digest found; empty where nothing was to be compared."""
    if closing is None or load.sending:
        return ""
    found = [each for each in closing.verifications if each.channel == load.channel]
    if any(each.mismatch for each in found):
        return " (mismatch: it differs from the sender's digest)"
    reason = next((each.reason for each in found if each.unverified), None)
    if reason is not None:
        return f" (not verified: {reason})"
    return " (verified)" if found else ""


def _loads(facts: RequestFacts) -> str:
    """Return what was loaded after a long wait; empty for nothing."""
    loads = [_loaded(load, facts) for load in request_loads(facts)]
    return f"; it {' and '.join(loads)}" if loads else ""


def _unfinished(facts: RequestFacts) -> str:
    waits = [entry.event.deferral_start for entry in facts.open_deferrals]
    if not waits:
        return "has not finished, as far as the journal knows"
    reason = attributes.enum_word(common_pb2.DeferralReason, waits[0].reason) or "something"
    return f"has not finished: it is deferred ({reason}, {_peer(waits[0].peer)})"


def _end(facts: RequestFacts, *, split: bool = True) -> str:
    """Return how the request ended, how long it took, and with *split* what its wait was made of."""
    closing = facts.closing
    if closing is None:
        return ""
    took = _duration(facts.end_unix_nano - facts.start_unix_nano)
    parts = split_words(facts) if split else ""
    waited = f", deferred for {_duration(facts.deferred_nano)} of that" if facts.deferred_nano else ""
    waited += f" ({parts})" if waited and parts else ""
    return f"; it ended ({closing.finish_reason or 'no reason'}) after {took}{waited}"
