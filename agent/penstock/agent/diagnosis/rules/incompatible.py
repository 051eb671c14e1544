"""Pairs of engines whose handshakes fail because their settings differ: after a roll-out of one half."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.diagnosis.facts import (
    RECOMPUTED_SECONDS,
    Confidence,
    Evidence,
    FoundCause,
    ended_at,
    first_sign,
    words,
)
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.agent.diagnosis.facts import Attribution, Facts, Failure, PeerTrouble

# What a failed handshake counts for beside its requests, seconds: no retry will help.
_HANDSHAKE_SECONDS = 1.0


def incompatible_causes(facts: Facts, shares: Attribution) -> Iterator[FoundCause]:
    """Yield a cause for each peer with incompatible handshakes."""
    for (_, peer), trouble in sorted(shares.peers.items()):
        failures = [each for each in trouble.failures if each.error_type == common.ERROR_TYPE_INCOMPATIBLE]
        if failures:
            yield _incompatible(facts, peer, trouble)


def _incompatible(facts: Facts, peer: str, trouble: PeerTrouble) -> FoundCause:
    failures = [each for each in trouble.failures if each.error_type == common.ERROR_TYPE_INCOMPATIBLE]
    before = [each for each in trouble.before if each.error_type == common.ERROR_TYPE_INCOMPATIBLE]
    factors = sorted({factor for each in failures for factor in each.factors})
    failed = sum(each.outcome == common.OUTCOME_FAILED for each in trouble.load_ends)
    recomputed = sum(each.outcome == common.OUTCOME_RECOMPUTED for each in trouble.load_ends)
    keys = words.keys_of([*(each.key for each in failures), *(each.key for each in trouble.load_ends)])
    differ = f"they differ in {', '.join(factors)}" if factors else "what differs is not known"
    remote = _engine_at(facts, peer)
    evidence = [
        Evidence(
            f"{words.count(len(failures), 'handshake')} failed as incompatible in {words.span(facts.present.seconds)}",
            f"{len(before)} in {words.span(facts.before.seconds)}",
        )
    ]
    if factors:
        evidence.append(Evidence(f"factors that differ: {', '.join(factors)}"))
    elif failures[0].text:
        evidence.append(Evidence(f"the last one says: {words.cut(failures[0].text)}"))
    if failed or recomputed:
        evidence.append(Evidence(f"requests that failed: {failed}, recomputed: {recomputed}"))
    until = _end(facts, failures, trouble)
    compare = (f"agentctl diff engine {keys[0]} {remote}",) if remote else ()
    return FoundCause(
        "incompatible_peer",
        f"peer {peer} {'was' if until else 'is'} incompatible with {words.engines(keys)}: {differ}",
        keys,
        tuple(evidence),
        peer=peer,
        requests=len(
            ({each.request_id for each in failures} | {each.request_id for each in trouble.load_ends}) - {""}
        ),
        failed=failed,
        other_harm=RECOMPUTED_SECONDS * recomputed + _HANDSHAKE_SECONDS * len(failures),
        confidence=Confidence.CERTAIN if factors else Confidence.LIKELY,
        alternatives=(
            "a roll-out that has not finished: the pairs are healthy again once both sides have one version",
            "the router pairs engines of two deployments",
        ),
        until=until,
        since=first_sign(facts, (each.time for each in failures), (each.time for each in before)),
        commands=(
            *compare,
            f"agentctl describe peer {peer}",
            *(() if until else (f"agentctl quarantine add {peer} --ttl 1h --reason WHY",)),
        ),
    )


def _end(facts: Facts, failures: Sequence[Failure], trouble: PeerTrouble) -> int:
    """Return when the last handshake failed, nanoseconds, where loads have gone well since; 0 while it lasts."""
    until = ended_at((each.time for each in failures), facts.now)
    return until if any(each > until for each in trouble.well) else 0


def _engine_at(facts: Facts, peer: str) -> str:
    """Return the engine whose side channel *peer* is; empty if no agent here has it."""
    for engine in facts.engines:
        if engine.facts.side_channel == peer:
            return str(words.key_of(engine.key))
    return ""
