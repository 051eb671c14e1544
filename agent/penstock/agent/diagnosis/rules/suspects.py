"""Answers that may be wrong because of what they read: failed, exchanged or overwritten blocks, and NaNs."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from penstock.agent.diagnosis.facts import (
    SUSPECT_SECONDS,
    Confidence,
    Evidence,
    FoundCause,
    ended_at,
    first_sign,
    words,
)
from penstock.proto.v1 import events_pb2 as events

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.agent.diagnosis.facts import Attribution, Facts
    from penstock.proto.v1 import admin_pb2 as admin

# Late reads and other weights have rules of their own, which name the answers, too.
_REASONS: Final[dict[int, tuple[str, str]]] = {
    events.SUSPECT_REASON_MISMATCH: (
        "what they read is not what was sent",
        "integrity with action enforce recomputes such answers: agentctl explain REQUEST_ID has the blocks",
    ),
    events.SUSPECT_REASON_FAILED_READ: (
        "a read failed and they were computed from its blocks all the same",
        "kvLoadFailure with action recompute or fail ends that: vLLM let these requests go on",
    ),
    events.SUSPECT_REASON_LATE_WRITE: (
        "a peer wrote into blocks that were no longer waited for",
        "transfers that outlive their requests: see deferral.maxTransferWait and aborted requests",
    ),
    events.SUSPECT_REASON_NAN: (
        "there were NaNs among their logits",
        "the model itself or its quantization, if requests without a transfer have NaNs, too",
    ),
}


def suspect_causes(facts: Facts, _shares: Attribution) -> Iterator[FoundCause]:
    """Yield a cause for each reason and peer."""
    found: dict[tuple[int, str], list[admin.Suspect]] = defaultdict(list)
    for each in facts.suspects:
        for reason in map(int, each.reasons if not each.rehearsal else ()):
            if reason in _REASONS:
                found[reason, each.peer.address].append(each)
    for (reason, peer), rows in sorted(found.items()):
        yield _cause(facts, reason, peer, rows)


def _cause(facts: Facts, reason: int, peer: str, rows: Sequence[admin.Suspect]) -> FoundCause:
    what, other = _REASONS[reason]
    keys = words.keys_of(words.key_of(each.key) for each in rows if each.HasField("key"))
    ids = sorted({each.request_id for each in rows if each.request_id})
    of_peer = f", with blocks from {words.peer(peer)}" if peer else ""
    sentence = next((each.evidence[0] for each in rows if each.evidence), "")
    return FoundCause(
        "answers_suspect",
        f"{words.count(len(rows), 'answer')} of {words.engines(keys)} may be wrong: {what}{of_peer}",
        keys,
        (
            Evidence(f"{words.count(len(rows), 'answer')} in {words.span(facts.present.seconds)}"),
            *([Evidence(words.named(ids, "request"))] if ids else []),
            *([Evidence(f"of the newest: {words.cut(sentence)}")] if sentence else []),
        ),
        peer=peer,
        requests=len(rows),
        other_harm=SUSPECT_SECONDS * len(rows),
        confidence=Confidence.CERTAIN,
        until=ended_at((each.seen.ToNanoseconds() for each in rows), facts.now),
        since=first_sign(facts, (each.seen.ToNanoseconds() for each in rows if each.HasField("seen"))),
        alternatives=(other,),
        commands=(
            f"agentctl get suspects --since {words.window(facts.present.seconds)}",
            *((f"agentctl explain {ids[0]}",) if ids else ()),
        ),
    )
