"""KV blocks that are held: by leases, for a reader that comes late or never; by loads whose request has ended or was given up."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from penstock.agent import limits
from penstock.agent.diagnosis.facts import (
    SUSPECT_SECONDS,
    Confidence,
    Evidence,
    FoundCause,
    ended_at,
    first_sign,
    sane,
    words,
)
from penstock.agent.diagnosis.rules.scheduler import starved_words
from penstock.proto.names import NANOS
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1.events_pb2 import (
    LEASE_ENDING_EXPIRED,
    LEASE_ENDING_READ,
    SUSPECT_REASON_LATE_READ,
)
from penstock.proto.v1.snapshot_pb2 import (
    BLOCK_HOLDER_ABORTED,
    BLOCK_HOLDER_PINNED,
    BLOCK_HOLDER_SAVE,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.agent.diagnosis.facts import Attribution, Facts, Failure, LeaseEnd

# What a lease that ended unread counts for, seconds: its request usually failed or was computed again elsewhere.
_EXPIRED_SECONDS = 2.0
# What a request whose blocks are held counts for, and all blocks of the cache, seconds.
_REQUEST_SECONDS, _CACHE_SECONDS = 2.0, 600.0
# By holder: the kind of the cause, what holds the blocks, and what else it could be.
_HOLDERS = {
    BLOCK_HOLDER_ABORTED: (
        "aborted_loads_hold_blocks",
        "loads of requests that have ended",
        "the peer never completes or ends the transfer: see whether it is alive",
    ),
    BLOCK_HOLDER_PINNED: (
        "pinned_blocks",
        "loads that were given up",
        "the peer is stopped and may still write: the blocks are safe only when the load has ended or the engine restarts",
    ),
    BLOCK_HOLDER_SAVE: (
        "saves_hold_blocks",
        "saves of requests that have ended",
        "the store is slow or full",
    ),
}


def lease_causes(facts: Facts, _shares: Attribution) -> Iterator[FoundCause]:
    """Yield late reads, leases that ended unread, and leases that no one reads."""
    yield from _late_reads(facts)
    yield from _expired(facts)
    yield from _old(facts)


def _late_reads(facts: Facts) -> Iterator[FoundCause]:
    """Yield those of which an answer may be wrong: not where the log shows that none is."""
    by_peer: dict[str, list[Failure]] = defaultdict(list)
    for each in facts.present.failures:
        if each.mode == common.FAILURE_MODE_LATE_READ and _is_told(facts, each):
            by_peer[each.peer].append(each)
    before = [each for each in facts.before.failures if each.mode == common.FAILURE_MODE_LATE_READ]
    for peer, rows in sorted(by_peer.items()):
        keys = words.keys_of(each.key for each in rows)
        ids = sorted({each.request_id for each in rows if each.request_id})
        yield FoundCause(
            "late_reads",
            f"blocks of {words.engines(keys)} were read after their lease had ended: "
            f"{words.count(len(rows), 'answer')} may be wrong",
            keys,
            (
                Evidence(
                    f"{words.count(len(rows), 'late read')} in {words.span(facts.present.seconds)}",
                    f"{len(before)} in {words.span(facts.before.seconds)}",
                ),
                *([Evidence(f"{words.named(ids, 'request')} at prefill")] if ids else []),
                *_answers(facts, ids),
            ),
            peer="" if peer == "unknown" else peer,
            requests=len(ids) or len(rows),
            other_harm=SUSPECT_SECONDS * len(rows),
            confidence=Confidence.CERTAIN,
            until=ended_at((each.time for each in rows), facts.now),
            since=first_sign(
                facts, (each.time for each in rows), (each.time for each in before if each.peer == peer)
            ),
            alternatives=(
                "decode is overloaded and reads late: see its waits",
                "a lease that is too short for this load: kv_lease_duration of vLLM",
            ),
            commands=(
                f"agentctl get events --kind transfer_failure --mode late_read --since {words.window(facts.present.seconds)}",
            ),
        )


def _is_told(facts: Facts, late: Failure) -> bool:
    return not late.rehearsal and late.request_id not in facts.cleared_late_reads


def _answers(facts: Facts, prefill_ids: list[str]) -> Iterator[Evidence]:
    """Yield the answers that were computed from these blocks, where the log has them."""
    answers = [
        each
        for each in facts.suspects
        if SUSPECT_REASON_LATE_READ in each.reasons
        and each.request_id
        and each.peer_request_id in prefill_ids
    ]
    if answers:
        ids = {each.request_id for each in answers}
        keys = words.keys_of(words.key_of(each.key) for each in answers)
        yield Evidence(f"computed from them: {words.named(ids, 'request')} of {words.engines(keys)}")


def _expired(facts: Facts) -> Iterator[FoundCause]:
    """Yield the engines of which leases end unread; those that were read afterwards are late reads."""
    late = {
        (each.key.server, each.request_id)
        for window in (facts.present, facts.before)
        for each in window.failures
        if each.mode == common.FAILURE_MODE_LATE_READ and _is_told(facts, each)
    }

    def is_unread(each: LeaseEnd) -> bool:
        return each.ending == LEASE_ENDING_EXPIRED and (each.key.server, each.request_id) not in late

    for key in words.keys_of(each.key for each in facts.present.lease_ends):
        rows = [each for each in facts.present.lease_ends if each.key == key]
        expired = [each for each in rows if is_unread(each)]
        before = [each for each in facts.before.lease_ends if each.key == key]
        released, blocks = _released(rows), sum(each.blocks for each in expired)
        if len(expired) <= max(limits.EXPIRED_COUNT, limits.EXPIRED_SHARE * released):
            continue
        yield FoundCause(
            "leases_expire",
            f"{words.count(len(expired), 'lease')} of engine {key} ended before a reader came: "
            f"{words.count(blocks, 'block')} were kept in vain",
            (key,),
            (
                Evidence(
                    f"{len(expired)} expired and {released} released in {words.span(facts.present.seconds)}",
                    f"{sum(map(is_unread, before))} expired and {_released(before)} released in "
                    f"{words.span(facts.before.seconds)}",
                ),
                Evidence(
                    f"the longest was kept for {words.span(max(each.seconds for each in expired))}; "
                    f"for instance {words.named([each.request_id for each in expired[:1]], 'request')}"
                ),
            ),
            requests=len(expired),
            other_harm=_EXPIRED_SECONDS * len(expired),
            confidence=Confidence.CERTAIN,
            until=ended_at((each.time for each in expired), facts.now),
            begun=max(each.time - int(each.seconds * NANOS) for each in expired),
            since=first_sign(
                facts,
                (each.time for each in expired),
                (each.time for each in before if is_unread(each)),
                0,
            ),
            alternatives=(
                "decode engines are overloaded or gone: see their waits and losses",
                "clients disconnect between prefill and decode",
                "the router drops the request after prefill",
                "the blocks were read, and the notification named another request: decode then has loaded them",
            ),
            commands=(
                f"agentctl get events --kind lease_closed --since {words.window(facts.present.seconds)}",
                f"agentctl describe engine {key}",
            ),
        )


def _released(rows: Iterable[object]) -> int:
    return sum(getattr(each, "ending", 0) == LEASE_ENDING_READ for each in rows)


def _old(facts: Facts) -> Iterator[FoundCause]:
    for engine in facts.engines:
        leases, begun = engine.leases, engine.leases.oldest_start_time_unix_nano
        age = (facts.now - begun) / NANOS if begun else 0.0
        if not engine.connected or not leases.count or age < limits.LEASE_SECONDS:
            continue
        key = words.key_of(engine.key)
        total = engine.facts.num_gpu_blocks
        share = f", {100 * leases.blocks / total:.0f} % of its KV cache" if total else ""
        yield FoundCause(
            "leases_wait",
            f"engine {key} keeps {words.count(leases.blocks, 'block')} for readers, the oldest for {words.span(age)}"
            f"{starved_words(engine)}",
            (key,),
            (
                Evidence(
                    f"{words.count(leases.count, 'lease')} with {words.count(leases.blocks, 'block')}{share}"
                ),
            ),
            requests=leases.count,
            since=sane(facts, begun),
            begun=begun,
            other_harm=_EXPIRED_SECONDS * leases.count,
            alternatives=(
                "its readers have gone: a decode engine that died after prefill never reads",
                "a lease that was made long on purpose: kv_lease_duration of vLLM",
            ),
            commands=(f"agentctl describe engine {key}", "agentctl get engines"),
        )


def held_causes(facts: Facts, _shares: Attribution) -> Iterator[FoundCause]:
    """Yield what holds blocks for longer than it takes."""
    for key, row in facts.held:
        words_of = _HOLDERS.get(row.holder)
        begun = row.oldest_start_time_unix_nano
        age = (facts.now - begun) / NANOS if begun else 0.0
        if words_of is None or not row.blocks or age < limits.HELD_SECONDS:
            continue
        kind, says, other = words_of
        engine = next((each for each in facts.engines if words.key_of(each.key) == key), admin.Engine())
        total, connector = engine.facts.num_gpu_blocks, engine.facts.kv_connector
        share = row.blocks / total if total else 0.0
        peer = row.peer.address
        of_peer = f", from {words.peer(peer)}" if peer else ""
        yield FoundCause(
            kind,
            f"engine {key}: {words.count(row.blocks, 'block')} {'is' if row.blocks == 1 else 'are'} still held by "
            f"{says}{of_peer}, the oldest for {words.span(age)}{starved_words(engine)}",
            (key,),
            (
                Evidence(
                    f"{words.count(row.requests, 'request')}, {words.count(row.blocks, 'block')}"
                    + (f", {100 * share:.0f} % of its KV cache" if total else "")
                ),
                *([Evidence(f"{connector} has not reported their end")] if connector else []),
            ),
            peer=peer,
            requests=row.requests,
            since=sane(facts, begun),
            other_harm=_REQUEST_SECONDS * row.requests + _CACHE_SECONDS * min(share, 1.0),
            confidence=Confidence.CERTAIN,
            alternatives=(
                other,
                "a transfer that is slow and not stuck: agentctl get peers has the oldest in flight",
            ),
            commands=(
                *((f"agentctl describe peer {peer}",) if peer else ()),
                f"agentctl describe engine {key}",
            ),
        )
