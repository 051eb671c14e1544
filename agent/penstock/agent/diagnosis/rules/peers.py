"""A peer whose transfers fail, or for which requests wait: one cause a peer and channel, whatever it did to others."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.agent import limits
from penstock.agent.diagnosis.facts import (
    EC,
    KV,
    RECOMPUTED_SECONDS,
    ClosedByPeer,
    Confidence,
    Evidence,
    FoundCause,
    joined,
    words,
)
from penstock.agent.diagnosis.rules.peer_course import (
    NO_SERVERS,
    LostEngines,
    PeersInUse,
    begin_of,
    end_of,
    engines_of,
    is_in_trouble,
    is_usual_known,
    newest_sign,
    routed_away,
    slept,
    untried_words,
)
from penstock.agent.diagnosis.rules.peer_kinds import REFUSES, kind_of, name_of
from penstock.agent.pairs import EncoderStates
from penstock.proto.names import label
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.agent.diagnosis.facts import Attribution, Facts, Failure, PeerTrouble
    from penstock.agent.model import EngineKey

# What a failure counts for beside the requests that it touched, seconds.
_FAILURE_SECONDS = 0.1
_STOPPED: Final = " and was stopped"
_NOT_DRAINED: Final = "the router has not let go of it: let it drain a pod before that is stopped"


def peer_causes(facts: Facts, shares: Attribution) -> Iterator[FoundCause]:
    """Yield a cause for each peer and channel in trouble, but for incompatible ones."""
    encoders = EncoderStates.of(facts.engines, facts.now)
    at_engines, lost = PeersInUse.of(facts), LostEngines.of(facts, shares)
    closed = (ClosedByPeer.of(facts.present), ClosedByPeer.of(facts.before))
    troubled = {place: trouble for place, trouble in sorted(shares.peers.items()) if is_in_trouble(trouble)}
    for stale in _stale_addresses(facts, troubled, lost):
        yield _stale(facts, {peer: troubled.pop((KV, peer)) for peer in stale})
    for (channel, peer), trouble in troubled.items():
        first = tuple(_first_tokens(trouble, *closed))
        evidence = (
            *first,
            *_present(trouble),
            *lost.told(channel, peer),
            *slept(facts, channel, peer, trouble),
        )
        if channel == EC and not facts.past:
            told = encoders.present(peer, newest_sign(trouble))
            evidence = (*evidence, *(Evidence(f"engine {encoders.name(peer)}: {each}") for each in told))
        yield _cause(facts, (channel, peer), trouble, _beside(at_engines, peer, trouble), evidence)


def _stale_addresses(
    facts: Facts, troubled: Mapping[tuple[int, str], PeerTrouble], lost: LostEngines
) -> Iterator[list[str]]:
    """Yield the peers of each engine at which nothing listens and from which nothing was ever loaded, if they are many."""
    known = {each.facts.side_channel for each in facts.engines} | {each.peer for each in facts.before.waits}
    found: dict[tuple[EngineKey, ...], list[str]] = defaultdict(list)
    for (channel, peer), trouble in troubled.items():
        strange = peer not in known and peer not in NO_SERVERS and not any(lost.told(channel, peer))
        if channel == KV and strange and kind_of(trouble) == REFUSES and not (trouble.well or trouble.before):
            found[engines_of(trouble)].append(peer)
    for peers in found.values():
        if len(peers) >= limits.STALE_ADDRESSES:
            yield peers


def _stale(facts: Facts, troubles: Mapping[str, PeerTrouble]) -> FoundCause:
    """Return the cause about several addresses that are no engine's any more."""
    whole = joined(troubles.values())
    cause = _cause(facts, (KV, ""), whole, 0, ())
    untried = untried_words(facts, whole).replace(" was ", " were ")
    others_load = _others_load(facts, cause.engines, troubles)
    failed, recomputed = _ends(whole)
    return replace(
        cause,
        kind="addresses_refuse",
        sentence=(
            f"{len(troubles)} addresses, from which nothing was loaded, {'refused' if untried else 'refuse'} connections"
            f"{untried}: {_effect(whole, failed, recomputed)}"
        ),
        evidence=(Evidence(f"requests named {words.named(troubles, 'peer')}"), *cause.evidence),
        peers=tuple(sorted(troubles)),
        confidence=Confidence.LIKELY if others_load else Confidence.POSSIBLE,
        alternatives=(
            *(
                ()
                if others_load
                else (f"{words.engines(cause.engines)} or the network there: nothing else is loaded",)
            ),
            "pods that have ended, and of which the router has not let go",
            "a router that takes an address from where it is not kept: compare them with the pods' addresses",
            "a network policy that forbids the connection",
        ),
        commands=(
            f"agentctl get requests --outcome failed --since {words.window(facts.present.seconds)}",
            "agentctl get peers",
        ),
    )


def _others_load(facts: Facts, engines: tuple[EngineKey, ...], peers: Mapping[str, PeerTrouble]) -> bool:
    """Return whether each of *engines* loads from other peers: then its own network is well."""
    loading = {each.key for each in facts.present.waits if each.peer and each.peer not in peers}
    return loading.issuperset(engines)


def _beside(at_engines: PeersInUse, peer: str, trouble: PeerTrouble) -> int:
    return at_engines.failing_beside(peer, engines_of(trouble)) if trouble.failures else 0


def _cause(
    facts: Facts, place: tuple[int, str], trouble: PeerTrouble, beside: int, more: tuple[Evidence, ...]
) -> FoundCause:
    """Return the cause about a peer of a channel.

    Args:
        beside: other peers that fail at the one engine that sees it.
        more: evidence of what surrounds it.

    """
    channel, peer = place
    kind = kind_of(trouble)
    late = [*trouble.slow, *trouble.delayed]
    names = {each.wait.request_id for each in late} | {each.request_id for each in trouble.load_ends}
    names |= {each.request_id for each in (*trouble.failures, *trouble.collateral) if each.request_id}
    failed, recomputed = _ends(trouble)
    harm = RECOMPUTED_SECONDS * recomputed + _FAILURE_SECONDS * len(trouble.failures)
    subject = words.peer(peer, "encoder" if channel == EC else "peer")
    gone = _gone(more)
    until = end_of(facts, trouble) or routed_away(facts, channel, peer, trouble)
    untried = untried_words(facts, trouble)
    verb = f"{kind.said if until or untried else kind.says}{gone}{untried}"
    return FoundCause(
        name_of(kind, channel),
        f"{subject} {verb}: {_effect(trouble, failed, recomputed)}",
        engines_of(trouble),
        (*_evidence(facts, trouble, failed, recomputed), *more),
        peer=peer,
        requests=len(names) + sum(each.number for each in trouble.present),
        seconds=sum(each.excess for each in late) + sum(each.age * each.number for each in trouble.present),
        failed=failed,
        other_harm=harm,
        confidence=_confidence(facts, peer, trouble, beside),
        alternatives=(
            *((_NOT_DRAINED,) if gone == _STOPPED else ()),
            *_engine_itself(trouble, beside),
            *kind.alternatives,
        ),
        commands=_commands(facts, channel, peer, trouble, late=bool(late), beside=beside, ended=bool(until)),
        until=until,
        since=begin_of(facts, trouble),
    )


def _gone(evidence: tuple[Evidence, ...]) -> str:
    """Return that the engine behind a peer has gone, and how, by the evidence of what surrounds it; or ""."""
    if any(" vanished without a goodbye " in each.fact for each in evidence):
        return " and vanished"
    if any(" sleeps since " in each.fact for each in evidence):
        return " and sleeps"
    return _STOPPED if any(" said goodbye and ended " in each.fact for each in evidence) else ""


def _ends(trouble: PeerTrouble) -> tuple[int, int]:
    """Return how many requests failed and how many were recomputed."""
    outcomes = Counter(each.outcome for each in trouble.load_ends)
    return outcomes[common.OUTCOME_FAILED], outcomes[common.OUTCOME_RECOMPUTED]


def _effect(trouble: PeerTrouble, failed: int, recomputed: int) -> str:
    parts = []
    if trouble.present:
        waiting, oldest = (
            sum(each.number for each in trouble.present),
            max(each.age for each in trouble.present),
        )
        parts.append(
            f"{words.count(waiting, 'request waits', 'requests wait')} now, the oldest for {words.span(oldest)}"
        )
    if failed:
        parts.append(f"{words.count(failed, 'request')} failed")
    if recomputed:
        parts.append(f"{words.count(recomputed, 'request was', 'requests were')} recomputed")
    if trouble.slow:
        total = sum(each.excess for each in trouble.slow)
        slow = words.count(len(trouble.slow), "request")
        together = " together" if len(trouble.slow) > 1 else ""
        than = " longer than usual" if any(each.usual for each in trouble.slow) else ""
        parts.append(f"{slow}{together} waited {words.span(total)}{than}")
    others = {each.wait.peer for each in trouble.delayed} | {each.peer for each in trouble.collateral}
    if others:
        harmed = len(trouble.delayed) + len(trouble.collateral)
        behind = words.count(harmed, "transfer")
        parts.append(
            f"{behind} of {words.count(len(others), 'other peer')} {'was' if harmed == 1 else 'were'} held up behind it"
        )
    return ", ".join(parts) or words.count(len(trouble.failures), "failure")


def _evidence(facts: Facts, trouble: PeerTrouble, failed: int, recomputed: int) -> Iterator[Evidence]:
    before = Counter(map(_what, trouble.before))
    for what, number in sorted(
        Counter(map(_what, trouble.failures)).items(), key=lambda item: (-item[1], item[0])
    ):
        yield Evidence(
            f"{words.count(number, 'failure')} {what} in {words.span(facts.present.seconds)}",
            f"{before[what]} in {words.span(facts.before.seconds)}",
        )
    if trouble.failures and trouble.failures[0].text:
        yield Evidence(f"the last one says: {words.cut(trouble.failures[0].text)}")
    owner = _owner(facts, trouble)
    if owner:
        yield Evidence(owner)
    if failed or recomputed:
        deciders = Counter(label(common.DecidedBy, each.decided_by) for each in trouble.load_ends)
        by = ", ".join(f"{number} by {word}" for word, number in sorted(deciders.items()))
        yield Evidence(f"requests that failed: {failed}, recomputed: {recomputed}; decided {by}")
    if trouble.slow:
        waits = [each.wait.seconds for each in trouble.slow]
        usual = max(each.usual for each in trouble.slow)
        yield Evidence(
            f"slow waits for it: {len(waits)} of {trouble.waits}, the median of these "
            f"{words.span(words.quantile(waits, 0.5))}",
            f"9 of 10 took up to {words.span(usual)}" if usual else "no earlier waits to compare with",
        )


def _owner(facts: Facts, trouble: PeerTrouble) -> str:
    """Return which engine answers at the address instead of the one that requests name; empty if it is not known here."""
    wrong = [each for each in trouble.failures if each.error_type == common.ERROR_TYPE_WRONG_ENGINE]
    for engine in facts.engines if wrong else ():
        name, key = engine.facts.kv_engine_id, words.key_of(engine.key)
        if name and any(f"received {name}" in each.text for each in wrong):
            own = (
                "the reading engine itself" if any(each.key == key for each in wrong) else "which advertises"
            )
            advertised = engine.facts.side_channel or "no address"
            return f"it is engine {key} that answers there: {own}{'' if own.endswith('itself') else f' {advertised}'}"
    return ""


def _present(trouble: PeerTrouble) -> Iterator[Evidence]:
    """Yield what waits now, and which peers only waited behind this one."""
    for each in trouble.present:
        usual_words = f"9 of 10 took up to {words.span(each.usual)}" if each.usual else ""
        yield Evidence(
            f"engine {each.key}: {words.count(each.number, 'request waits', 'requests wait')} for it, since "
            f"{words.span(each.age)}",
            usual_words,
        )
    held = {each.wait.peer for each in trouble.delayed} | {each.peer for each in trouble.collateral}
    if held:
        yield Evidence(
            f"{words.named(held, 'peer')} {'is' if len(held) == 1 else 'are'} not to blame: their requests waited behind this one"
        )


def _first_tokens(trouble: PeerTrouble, present: ClosedByPeer, before: ClosedByPeer) -> Iterator[Evidence]:
    """Yield the time to first token of the requests that read from the peer, by gate, where engines report it."""
    peers = {each.wait.peer for each in trouble.slow} | {each.peer for each in trouble.failures}
    now = present.first_tokens(peers)
    if now.number:
        yield Evidence(now.words(), before.first_tokens(peers).words())


def _what(failure: Failure) -> str:
    mode, error = label(common.FailureMode, failure.mode), label(common.ErrorType, failure.error_type)
    return f"{mode}/{error}"


def _confidence(facts: Facts, peer: str, trouble: PeerTrouble, beside: int) -> Confidence:
    """Return how sure it is that the peer is at fault: sure where it fails and others do not.

    Where nothing is known of the time before, long waits may be usual; where one engine alone sees several peers fail,
    the fault may be its own.
    """
    nothing_usual = not trouble.failures and trouble.slow and not is_usual_known(trouble)
    if peer in NO_SERVERS or nothing_usual or beside:
        return Confidence.POSSIBLE
    enough = len(trouble.failures) + len(trouble.slow) + len(trouble.present)
    known = trouble.failures or facts.before.waits
    return Confidence.CERTAIN if enough > 1 and known else Confidence.LIKELY


def _engine_itself(trouble: PeerTrouble, beside: int) -> Iterator[str]:
    """Yield what the failures of other peers say about this one."""
    if beside:
        fail = f"{words.count(beside, 'other peer')} {'fails' if beside == 1 else 'fail'}"
        yield f"engine {engines_of(trouble)[0]} itself or its network: {fail} there, too"


def _commands(
    facts: Facts, channel: int, peer: str, trouble: PeerTrouble, *, late: bool, beside: int, ended: bool
) -> tuple[str, ...]:
    if peer in NO_SERVERS:
        return (f"agentctl get events --kind transfer_failure --since {words.window(facts.present.seconds)}",)
    found = [f"agentctl describe peer {peer}"]
    if beside:
        return (f"agentctl describe engine {engines_of(trouble)[0]}", "agentctl get peers", *found)
    if trouble.present:
        found.append(f"agentctl get requests --deferred --peer {peer}")
    elif late:
        found.append(
            f"agentctl get requests --slow --peer {peer} --since {words.window(facts.present.seconds)}"
        )
    if ended:
        return tuple(found)
    if kind_of(trouble).kind == "wrong_engine_at_address":
        # Whose address it is, is healthy: a quarantine would cut its readers off.
        return (*found, "agentctl get pairs", "agentctl get engines -o wide")
    if channel == KV:
        found.append(f"agentctl quarantine add {peer} --ttl 30m --reason WHY")
    else:
        found.append(
            "agentctl set-policy encoders -l 'role in (decode,both)' --ec-load-failure recompute --deferral-max-transfer-wait 5s "
            "--deferral-on-timeout recompute --reason WHY"
        )
    return tuple(found)
