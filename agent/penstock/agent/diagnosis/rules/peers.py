"""A peer whose transfers fail, or for which requests wait: one cause a peer and channel, whatever it did to others."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent import limits
from penstock.agent.diagnosis.facts import (
    EC,
    KV,
    RECOMPUTED_SECONDS,
    WAITED_CHANNEL,
    ClosedByPeer,
    Confidence,
    Evidence,
    FoundCause,
    first_sign,
    joined,
    longest_pause,
    words,
)
from penstock.agent.diagnosis.rules.peer_surroundings import NO_SERVERS, LostEngines, PeersInUse
from penstock.proto.names import NANOS, label
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.agent.diagnosis.facts import Attribution, Facts, Failure, PeerTrouble
    from penstock.agent.model import EngineKey

# What a failure counts for beside the requests that it touched, seconds.
_FAILURE_SECONDS = 0.1
# Failures that end no load.
_HARMLESS = frozenset({common.FAILURE_MODE_NOTIFICATION, common.FAILURE_MODE_RELEASE})


class _Kind(NamedTuple):
    """What a peer does, by its most frequent error.

    Attributes:
        says: continues "peer 10.0.0.7:5600 …".
        said: the same once it has ended.
        alternatives: what else it could be.

    """

    kind: str
    says: str
    said: str
    alternatives: tuple[str, ...]


_OTHER_SIDE = "the network of the engine that reports it, if its other peers fail too: agentctl get peers"
_REFUSES = _Kind(
    "peer_refuses",
    "refuses connections",
    "refused connections",
    (
        "the pod restarts and will be back: kubectl get pods shows its restarts",
        "the router sends an address that is no engine's any more: compare it with the pods' addresses",
    ),
)
_KINDS: Final[dict[int, _Kind]] = {
    common.ERROR_TYPE_REFUSED: _REFUSES,
    common.ERROR_TYPE_REMOTE_RESET: _Kind(
        "peer_resets",
        "resets connections in mid-transfer",
        "reset connections in mid-transfer",
        (
            "the peer was stopped or restarted while it was read: see the events of its own engine",
            "its fabric connection is broken although the process runs: its transfers then fail until it restarts",
        ),
    ),
    common.ERROR_TYPE_TIMEOUT: _Kind(
        "peer_times_out",
        "does not answer in time",
        "did not answer in time",
        (
            "the peer's process is stopped or overloaded",
            _OTHER_SIDE,
            "a deadline of a policy that is too short",
        ),
    ),
    common.ERROR_TYPE_CORRUPT: _Kind(
        "peer_corrupts",
        "sends data that do not match",
        "sent data that did not match",
        ("a defect of memory, network card or driver on either side",),
    ),
    common.ERROR_TYPE_EVICTED: _Kind(
        "peer_evicts",
        "no longer has what is asked for",
        "no longer had what was asked for",
        ("its cache is too small for the load", "requests come too late: see how long they queue"),
    ),
    common.ERROR_TYPE_WRONG_ENGINE: _Kind(
        "wrong_engine_at_address",
        "is the address of another engine than requests name",
        "was the address of another engine than requests named",
        (
            "an engine advertises an address that is not its own: VLLM_NIXL_SIDE_CHANNEL_HOST is localhost unless it is set to the pod's address",
            "the engine there was restarted, and the router still names the one before",
        ),
    ),
    common.ERROR_TYPE_DECODE: _Kind(
        "peer_speaks_otherwise",
        "answers with what is not understood",
        "answered with what was not understood",
        ("another version of vLLM or of the connector", "an address that is not a side channel's port"),
    ),
}
_FAILS = _Kind(
    "peer_fails",
    "fails",
    "failed",
    ("a driver or library fault on this side, if other peers fail too: agentctl get peers", _OTHER_SIDE),
)
_SLOW = _Kind(
    "peer_slow",
    "is slow",
    "was slow",
    (
        "the peer is overloaded: its prefill queue is then long, and its other readers wait too",
        "the network between them",
        "the transfers are as fast as ever and the handshakes wait: agentctl explain REQUEST_ID has the parts",
    ),
)
_STOPPED: Final = " and was stopped"
_NOT_DRAINED: Final = "the router has not let go of it: let it drain a pod before that is stopped"
_ENCODER_KINDS: Final = {"peer_slow": "encoder_slow"}
_ENCODER_FAILS = "encoder_fails"


def peer_causes(facts: Facts, shares: Attribution) -> Iterator[FoundCause]:
    """Yield a cause for each peer and channel in trouble, but for incompatible ones."""
    at_engines, lost = PeersInUse.of(facts), LostEngines.of(facts, shares)
    closed = (ClosedByPeer.of(facts.present), ClosedByPeer.of(facts.before))
    troubled = {place: trouble for place, trouble in sorted(shares.peers.items()) if _is_in_trouble(trouble)}
    for stale in _stale_addresses(facts, troubled, lost):
        yield _stale(facts, {peer: troubled.pop((KV, peer)) for peer in stale})
    for (channel, peer), trouble in troubled.items():
        first = tuple(_first_tokens(trouble, *closed))
        evidence = (*first, *_present(trouble), *lost.told(channel, peer))
        yield _cause(facts, (channel, peer), trouble, _beside(at_engines, peer, trouble), evidence)


def _is_in_trouble(trouble: PeerTrouble) -> bool:
    """Return whether it is to be told here: not where handshakes are incompatible."""
    if any(each.error_type == common.ERROR_TYPE_INCOMPATIBLE for each in trouble.failures):
        return False
    return bool(trouble.failures or trouble.collateral) or _is_slow(trouble)


def _stale_addresses(
    facts: Facts, troubled: Mapping[tuple[int, str], PeerTrouble], lost: LostEngines
) -> Iterator[list[str]]:
    """Yield the peers of each engine at which nothing listens and from which nothing was ever loaded, if they are many."""
    known = {each.facts.side_channel for each in facts.engines} | {each.peer for each in facts.before.waits}
    found: dict[tuple[EngineKey, ...], list[str]] = defaultdict(list)
    for (channel, peer), trouble in troubled.items():
        strange = peer not in known and peer not in NO_SERVERS and not any(lost.told(channel, peer))
        if channel == KV and strange and _kind(trouble) == _REFUSES and not (trouble.well or trouble.before):
            found[_engines(trouble)].append(peer)
    for peers in found.values():
        if len(peers) >= limits.STALE_ADDRESSES:
            yield peers


def _stale(facts: Facts, troubles: Mapping[str, PeerTrouble]) -> FoundCause:
    """Return the cause about several addresses that are no engine's any more."""
    whole = joined(troubles.values())
    cause = _cause(facts, (KV, ""), whole, 0, ())
    untried = _untried(facts, whole).replace(" was ", " were ")
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
    return at_engines.failing_beside(peer, _engines(trouble)) if trouble.failures else 0


def _is_slow(trouble: PeerTrouble) -> bool:
    late = [*(trouble.slow if _is_slower_than_before(trouble) else ()), *trouble.delayed]
    many = len(late) >= max(limits.SLOW_WAITS_COUNT, limits.SLOW_WAITS_SHARE * trouble.waits)
    least = limits.SLOW_WAITS_LEAST_SECONDS if many else limits.SLOW_WAITS_SECONDS
    return bool(trouble.present) or sum(each.excess for each in late) >= least


def _is_slower_than_before(trouble: PeerTrouble) -> bool:
    """Return whether more of its waits are slow than is usual: some always are."""
    if trouble.usual_share is None:
        return sum(each.excess for each in trouble.slow) >= limits.SLOW_WAITS_UNKNOWN_SECONDS
    return len(trouble.slow) > limits.SLOW_WAITS_TIMES * trouble.usual_share * trouble.waits


def _cause(
    facts: Facts, place: tuple[int, str], trouble: PeerTrouble, beside: int, more: tuple[Evidence, ...]
) -> FoundCause:
    """Return the cause about a peer of a channel.

    Args:
        beside: other peers that fail at the one engine that sees it.
        more: evidence of what surrounds it.

    """
    channel, peer = place
    kind = _kind(trouble)
    late = [*trouble.slow, *trouble.delayed]
    names = {each.wait.request_id for each in late} | {each.request_id for each in trouble.load_ends}
    names |= {each.request_id for each in (*trouble.failures, *trouble.collateral) if each.request_id}
    failed, recomputed = _ends(trouble)
    harm = RECOMPUTED_SECONDS * recomputed + _FAILURE_SECONDS * len(trouble.failures)
    subject = words.peer(peer, "encoder" if channel == EC else "peer")
    gone = _gone(more)
    until = _end(facts, trouble) or _let_go(facts, channel, peer, trouble)
    untried = _untried(facts, trouble)
    verb = f"{kind.said if until or untried else kind.says}{gone}{untried}"
    return FoundCause(
        _name(kind, channel),
        f"{subject} {verb}: {_effect(trouble, failed, recomputed)}",
        _engines(trouble),
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
        since=_began(facts, trouble),
    )


def _gone(evidence: tuple[Evidence, ...]) -> str:
    """Return that the engine behind a peer has gone, and how, by the evidence of what surrounds it; or ""."""
    if any(" vanished without a goodbye " in each.fact for each in evidence):
        return " and vanished"
    return _STOPPED if any(" said goodbye and ended " in each.fact for each in evidence) else ""


def _end(facts: Facts, trouble: PeerTrouble) -> int:
    """Return when the trouble was last seen, nanoseconds, where loads have gone well since; 0 while it lasts.

    Of a peer that is seldom read from, one load is enough after a longer quiet time.
    """
    times = _signs(trouble)
    if trouble.present or not times:
        return 0
    well, quiet = sum(each > times[-1] for each in trouble.well), facts.now - times[-1]
    least = longest_pause(times) * (1.0 if well >= limits.QUIET_COUNT else limits.QUIET_TIMES)
    return times[-1] if well and quiet >= least else 0


def _let_go(facts: Facts, channel: int, peer: str, trouble: PeerTrouble) -> int:
    """Return when the trouble was last seen, nanoseconds, where the router has let go of the peer since; else 0.

    Nobody tried it, although nothing keeps them from it, and each engine that had trouble with it loads well from others.
    """
    times = _signs(trouble)
    if trouble.present or not times or trouble.tried > times[-1]:
        return 0
    quiet = facts.now - times[-1]
    least = max(limits.QUIET_TIMES * longest_pause(times), limits.LET_GO_SECONDS * NANOS)
    if quiet < least or any(each.peer.address == peer for each in facts.quarantines):
        return 0
    well = Counter(
        each.key
        for each in facts.present.waits
        if WAITED_CHANNEL.get(each.reason) == channel
        and each.peer not in {peer, *NO_SERVERS}
        and each.time > times[-1]
    )
    # Of an engine that has been stopped, or forgotten since, nothing more can be expected.
    expected = {words.key_of(each.key) for each in facts.engines if not each.said_goodbye}
    readers = [key for key in _engines(trouble) if key in expected or not facts.engines]
    return times[-1] if all(well[key] >= limits.QUIET_COUNT for key in readers) else 0


def _untried(facts: Facts, trouble: PeerTrouble) -> str:
    """Return that nothing was read from the peer since its trouble, which then is past, but not known to have ended; or ""."""
    times = _signs(trouble)
    if trouble.present or not times or trouble.tried > times[-1]:
        return ""
    quiet = facts.now - times[-1]
    return (
        f", and was not tried in the {words.span(quiet // NANOS)} since"
        if quiet >= longest_pause(times)
        else ""
    )


def _began(facts: Facts, trouble: PeerTrouble) -> int:
    """Return when its first sign was seen, nanoseconds: of a slow wait, when that began."""
    waits = (each.wait.time - int(each.wait.seconds * NANOS) for each in (*trouble.slow, *trouble.delayed))
    waiting = (facts.now - int(each.age * NANOS) for each in trouble.present)
    present = (*_signs(trouble), *waits, *waiting)
    if trouble.failures:
        return first_sign(facts, present, (each.time for each in trouble.before))
    return first_sign(facts, present, trouble.slow_before, 0)


def _signs(trouble: PeerTrouble) -> list[int]:
    """Return when something went wrong with the peer, nanoseconds, sorted."""
    return sorted(
        (
            *(each.time for each in (*trouble.failures, *trouble.collateral)),
            *(each.time for each in trouble.load_ends),
            *(each.wait.time for each in (*trouble.slow, *trouble.delayed)),
        )
    )


def _name(kind: _Kind, channel: int) -> str:
    return kind.kind if channel == KV else _ENCODER_KINDS.get(kind.kind, _ENCODER_FAILS)


def _kind(trouble: PeerTrouble) -> _Kind:
    counted = [each for each in trouble.failures if each.mode not in _HARMLESS] or trouble.failures
    if not counted and not trouble.collateral:
        return _SLOW
    # A tie goes by the number, so that the same facts give the same word.
    types = Counter(each.error_type for each in counted)
    most = min(types, key=lambda each: (-types[each], each), default=common.ERROR_TYPE_TIMEOUT)
    return _KINDS.get(most, _FAILS)


def _ends(trouble: PeerTrouble) -> tuple[int, int]:
    """Return how many requests failed and how many were recomputed."""
    outcomes = Counter(each.outcome for each in trouble.load_ends)
    return outcomes[common.OUTCOME_FAILED], outcomes[common.OUTCOME_RECOMPUTED]


def _engines(trouble: PeerTrouble) -> tuple[EngineKey, ...]:
    return words.keys_of(
        [
            *(each.key for each in (*trouble.failures, *trouble.collateral)),
            *(each.key for each in trouble.load_ends),
            *(each.wait.key for each in (*trouble.slow, *trouble.delayed)),
            *(each.key for each in trouble.present),
        ]
    )


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
        parts.append(f"{slow} waited {words.span(total)} longer than usual")
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
    nothing_usual = not trouble.failures and trouble.slow and not _is_usual_known(trouble)
    if peer in NO_SERVERS or nothing_usual or beside:
        return Confidence.POSSIBLE
    enough = len(trouble.failures) + len(trouble.slow) + len(trouble.present)
    known = trouble.failures or facts.before.waits
    return Confidence.CERTAIN if enough > 1 and known else Confidence.LIKELY


def _is_usual_known(trouble: PeerTrouble) -> bool:
    """Return whether it is known how long waits for the peer took: of the time before, or in the window, before the first long one."""
    if trouble.usual_share is not None:
        return True
    first = min((each.wait.time - int(each.wait.seconds * NANOS) for each in trouble.slow), default=0)
    return sum(each < first for each in trouble.well) >= limits.USUAL_LOGGED_COUNT


def _engine_itself(trouble: PeerTrouble, beside: int) -> Iterator[str]:
    """Yield what the failures of other peers say about this one."""
    if beside:
        fail = f"{words.count(beside, 'other peer')} {'fails' if beside == 1 else 'fail'}"
        yield f"engine {_engines(trouble)[0]} itself or its network: {fail} there, too"


def _commands(
    facts: Facts, channel: int, peer: str, trouble: PeerTrouble, *, late: bool, beside: int, ended: bool
) -> tuple[str, ...]:
    if peer in NO_SERVERS:
        return (f"agentctl get events --kind transfer_failure --since {words.window(facts.present.seconds)}",)
    found = [f"agentctl describe peer {peer}"]
    if beside:
        return (f"agentctl describe engine {_engines(trouble)[0]}", "agentctl get peers", *found)
    if trouble.present:
        found.append(f"agentctl get requests --deferred --peer {peer}")
    elif late:
        found.append(
            f"agentctl get requests --slow --peer {peer} --since {words.window(facts.present.seconds)}"
        )
    if ended:
        return tuple(found)
    if _kind(trouble).kind == "wrong_engine_at_address":
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
