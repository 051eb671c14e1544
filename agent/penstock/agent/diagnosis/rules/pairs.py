"""Pairs of engines that answer wrongly or cannot shake hands: by what both ends are, and by the handshakes that failed."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from penstock.agent.diagnosis.facts import (
    RECOMPUTED_SECONDS,
    SUSPECT_SECONDS,
    Confidence,
    Evidence,
    FoundCause,
    ended_at,
    first_sign,
    words,
)
from penstock.agent.pairs import versions_apart
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1.events_pb2 import SUSPECT_REASON_OTHER_WEIGHTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.agent.diagnosis.facts import Attribution, Facts, Failure, PeerTrouble
    from penstock.agent.model import EngineKey

# What a pair counts for between which nothing has been moved, seconds.
_PAIR_SECONDS = 5.0
# Pairs of two versions that are told one by one.
_MAX_EFFECTS: Final = 256
# What a failed handshake counts for beside its requests, seconds: no retry will help.
_HANDSHAKE_SECONDS = 1.0


def pair_causes(facts: Facts, shares: Attribution) -> Iterator[FoundCause]:
    """Yield pairs with different weights, and those that will not shake hands."""
    failing = {
        (each.key, peer)
        for (_, peer), trouble in shares.peers.items()
        for each in trouble.failures
        if each.error_type == common.ERROR_TYPE_INCOMPATIBLE
    }
    yield from _weights_before(facts)
    mixed = []
    for pair in facts.pairs:
        if pair.weights == admin.PAIR_WEIGHTS_DIFFER:
            yield _weights(facts, pair)
        elif pair.compatible == admin.PAIR_COMPATIBILITY_NO:
            is_known = _is_known(pair, failing)
            if pair.HasField("peer_key") and versions_apart(pair):
                mixed.append((pair, is_known))
            elif is_known:
                yield _incompatible(pair)
    if mixed:
        yield _mixed(facts, mixed)


def _is_known(pair: admin.Pair, failing: set[tuple[EngineKey, str]]) -> bool:
    """Return whether both sides are known here, so that it needs no handshake, and none fails, which would be told by that.

    Of a peer that is no engine here only its failed handshakes are known: without one of late, its pod may have gone. A pair
    whose address is not known may be any that fails.
    """
    if not pair.HasField("peer_key"):
        return False
    address, peers = pair.peer.address, {peer for _, peer in failing}
    return address not in peers if address else words.key_of(pair.key) not in {key for key, _ in failing}


def _name(pair: admin.Pair) -> str:
    if pair.HasField("peer_key"):
        return f"engine {words.key_of(pair.peer_key)}"
    return f"peer {pair.peer.address}"


def _compare(pair: admin.Pair) -> tuple[str, ...]:
    key = words.key_of(pair.key)
    if pair.HasField("peer_key"):
        return (f"agentctl diff engine {key} {words.key_of(pair.peer_key)}", "agentctl get pairs -o wide")
    return ("agentctl get pairs -o wide",)


def _weights(facts: Facts, pair: admin.Pair) -> FoundCause:
    key, peer = words.key_of(pair.key), pair.peer.address
    suspects = [
        each
        for each in facts.suspects
        if SUSPECT_REASON_OTHER_WEIGHTS in each.reasons
        and words.key_of(each.key) == key
        and each.peer.address == peer
    ]
    answers = sorted({each.request_id for each in suspects})
    values = next((each for each in pair.differences if each.fact == "weights"), None)
    return FoundCause(
        "weights_differ",
        f"engine {key} and {_name(pair)} have loaded different weights: "
        + (f"{words.count(len(answers), 'answer')} may be wrong" if answers else "answers will be wrong"),
        (key,),
        (
            *([Evidence(f"weights {values.value} and {values.peer_value}")] if values is not None else []),
            Evidence(f"{words.count(len(answers), 'answer')} of the window read blocks of the other"),
            *([Evidence(words.named(answers, "request"))] if answers else []),
            Evidence("no handshake compares weights: nothing fails"),
        ),
        peer=peer,
        requests=len(answers),
        other_harm=_PAIR_SECONDS + SUSPECT_SECONDS * len(answers),
        since=first_sign(facts, (each.seen.ToNanoseconds() for each in suspects if each.HasField("seen"))),
        confidence=Confidence.CERTAIN if answers else Confidence.LIKELY,
        alternatives=("the same model in other files: give both engines the label weights=NAME",),
        commands=(
            *_compare(pair),
            *(
                (
                    f"agentctl get suspects --since {words.window(facts.present.seconds)}",
                    f"agentctl explain {answers[0]}",
                )
                if answers
                else ()
            ),
        ),
    )


def _weights_before(facts: Facts) -> Iterator[FoundCause]:
    """Yield pairs that had different weights, and whose wrong answers are in the window: these stay wrong."""
    differ = {
        (words.key_of(pair.key), pair.peer.address)
        for pair in facts.pairs
        if pair.weights == admin.PAIR_WEIGHTS_DIFFER
    }
    found: dict[tuple[EngineKey, str], list[admin.Suspect]] = defaultdict(list)
    for each in facts.suspects:
        place = (words.key_of(each.key), each.peer.address)
        if SUSPECT_REASON_OTHER_WEIGHTS in each.reasons and place not in differ:
            found[place].append(each)
    for (key, peer), suspects in sorted(found.items()):
        answers = sorted({each.request_id for each in suspects})
        name = (
            f"engine {words.key_of(suspects[0].peer_key)}"
            if suspects[0].HasField("peer_key")
            else f"peer {peer}"
        )
        seen = [each.seen.ToNanoseconds() for each in suspects]
        unseen = _unseen(facts, key, words.key_of(suspects[0].peer_key))
        yield FoundCause(
            "weights_differ",
            f"engine {key} and {name} had loaded different weights: {words.count(len(answers), 'answer')} may be wrong",
            (key,),
            (
                Evidence(words.named(answers, "request")),
                Evidence("no handshake compares weights: nothing fails"),
                *(
                    Evidence(f"whether they still differ is not known: engine {each} is not connected")
                    for each in unseen
                ),
            ),
            peer=peer,
            requests=len(answers),
            other_harm=SUSPECT_SECONDS * len(answers),
            since=first_sign(facts, seen),
            until=0 if unseen else max(seen) or facts.now,
            confidence=Confidence.CERTAIN,
            commands=(
                f"agentctl get suspects --since {words.window(facts.present.seconds)}",
                f"agentctl explain {answers[0]}",
            ),
        )


def _unseen(facts: Facts, *keys: EngineKey) -> list[EngineKey]:
    """Return which of the engines *keys* are away without a goodbye: they may come back as they were."""
    away = {words.key_of(each.key) for each in facts.engines if not each.connected and not each.said_goodbye}
    return [key for key in keys if key in away]


def _mixed(facts: Facts, pairs: Sequence[tuple[admin.Pair, bool]]) -> FoundCause:
    """Return the one cause of all pairs of two versions, each with whether it is to be told: one whose handshakes fail is."""
    engines: defaultdict[str, set[EngineKey]] = defaultdict(set)
    for pair, _ in pairs:
        mine, theirs = versions_apart(pair) or ("", "")
        engines[mine].add(words.key_of(pair.key))
        engines[theirs].add(words.key_of(pair.peer_key))
    versions = sorted(engines, key=_numbers)
    places = {(words.key_of(pair.key), pair.peer.address) for pair, _ in pairs}
    # The first handshake of a pair fails at an address that its engine has told, before the pair is known to have met.
    told = {words.key_of(each.key): each.facts.side_channel for each in facts.engines}
    by_place = {(words.key_of(pair.key), told.get(words.key_of(pair.peer_key), "")) for pair, _ in pairs}
    met = any(pair.peer.address for pair, _ in pairs)
    return FoundCause(
        "versions_mixed",
        f"engines that are pairs run vLLM {', '.join(versions[:-1])} and {versions[-1]}: NIXL exchanges no KV blocks between versions",
        tuple(sorted({key for key, _ in places})),
        (
            *(Evidence(f"vLLM {each}: {words.engines(engines[each])}") for each in versions),
            Evidence(
                f"{words.count(len(pairs), 'pair')} of engines {'is' if len(pairs) == 1 else 'are'} of two versions"
            ),
        ),
        peers=tuple(sorted({peer for _, peer in places} - {""})),
        pairs=frozenset(places | by_place),
        other_harm=_PAIR_SECONDS * len(pairs),
        confidence=Confidence.LIKELY if met else Confidence.POSSIBLE,
        alternatives=(
            "a roll-out that has not finished: the pairs are well once both sides have one version",
            "the router never pairs them: give the engines of each version a value of their own of the label pool",
        ),
        commands=_compare(pairs[0][0]),
        effects=tuple(_incompatible(pair) for pair, is_told in pairs[:_MAX_EFFECTS] if is_told),
    )


def _numbers(version: str) -> tuple[tuple[int, str], ...]:
    """Return what sorts versions by their numbers."""
    return tuple((int(each) if each.isdigit() else -1, each) for each in version.split("."))


def _incompatible(pair: admin.Pair) -> FoundCause:
    key = words.key_of(pair.key)
    versions = versions_apart(pair)
    if versions is not None:
        sentence = (
            f"engine {key} runs vLLM {versions[0]} and {_name(pair)} vLLM {versions[1]}: NIXL exchanges no KV blocks "
            "between versions"
        )
    else:
        sentence = f"engine {key} and {_name(pair)} cannot exchange KV blocks: {words.cut(pair.reason)}"
    return FoundCause(
        "incompatible_pair",
        sentence,
        (key,),
        tuple(
            Evidence(f"{name}: {geometry}")
            for name, geometry in ((f"engine {key}", pair.geometry), (_name(pair), pair.peer_geometry))
            if geometry
        )
        or (Evidence(words.cut(pair.reason)),),
        peer=pair.peer.address,
        other_harm=_PAIR_SECONDS,
        confidence=Confidence.LIKELY if pair.peer.address else Confidence.POSSIBLE,
        alternatives=("the router never pairs the two: give them different values of the label pool",),
        commands=_compare(pair),
    )


def incompatible_causes(facts: Facts, shares: Attribution) -> Iterator[FoundCause]:
    """Yield a cause for each peer with incompatible handshakes."""
    for (_, peer), trouble in sorted(shares.peers.items()):
        failures = [each for each in trouble.failures if each.error_type == common.ERROR_TYPE_INCOMPATIBLE]
        if failures:
            yield _failed(facts, peer, trouble)


def _failed(facts: Facts, peer: str, trouble: PeerTrouble) -> FoundCause:
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
    until = _end_of_failures(facts, failures, trouble)
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


def _end_of_failures(facts: Facts, failures: Sequence[Failure], trouble: PeerTrouble) -> int:
    """Return when the last handshake failed, nanoseconds, where loads have gone well since; 0 while it lasts."""
    until = ended_at((each.time for each in failures), facts.now)
    return until if any(each > until for each in trouble.well) else 0


def _engine_at(facts: Facts, peer: str) -> str:
    """Return the engine whose side channel *peer* is; empty if no agent here has it."""
    for engine in facts.engines:
        if engine.facts.side_channel == peer:
            return str(words.key_of(engine.key))
    return ""
