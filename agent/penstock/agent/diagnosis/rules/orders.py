"""What stands although nothing fails now: orders of operators (a pause, an ejection, a drill, a quarantine), and cut-off peers."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from penstock.agent.diagnosis.facts import Confidence, Evidence, FoundCause, first_sign, sane, words
from penstock.proto.names import NANOS, label
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_OPEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.agent.diagnosis.facts import Attribution, Facts, LoadEnd
    from penstock.agent.model import EngineKey
    from penstock.proto.v1 import admin_pb2 as admin

# What an order counts for that does nothing to requests now, seconds.
_STANDING_SECONDS = 5.0
# What a peer that stays cut off counts for at each engine, seconds: nothing fails now, its readers have one source less.
_CUT_OFF_SECONDS = 5.0
_NAMED = 3


def order_causes(facts: Facts, shares: Attribution) -> Iterator[FoundCause]:
    """Yield the orders that are in force."""
    yield from _paused(facts)
    yield from _ejected(facts)
    yield from _drills(facts, shares)
    yield from _quarantines(facts, shares)


def _paused(facts: Facts) -> Iterator[FoundCause]:
    paused = [each for each in facts.engines if each.connected and each.paused]
    if not paused:
        return
    keys = words.keys_of(words.key_of(each.key) for each in paused)
    evidence = tuple(
        Evidence(
            f"engine {words.key_of(each.key)}: paused"
            + (
                f" {words.ago(each.pause.since.ToNanoseconds(), facts.now)}"
                if each.pause.HasField("since")
                else ""
            )
            + (f" by {each.pause.author}" if each.pause.author else "")
            + (f": {words.cut(each.pause.reason)}" if each.pause.reason else "")
        )
        for each in paused[:3]
    )
    since = [each.pause.since.ToNanoseconds() for each in paused if each.pause.HasField("since")]
    yield FoundCause(
        "paused",
        f"{words.engines(keys)} {'is' if len(keys) == 1 else 'are'} paused: no policy is in force and nothing is recorded",
        keys,
        evidence,
        other_harm=_STANDING_SECONDS * len(keys),
        since=sane(facts, min(since, default=0)),
        confidence=Confidence.CERTAIN,
        alternatives=("the pause is meant: then nothing can be said of these engines",),
        commands=(f"agentctl resume {keys[0]}", "agentctl get audit"),
    )


def _ejected(facts: Facts) -> Iterator[FoundCause]:
    """Yield a cause for the servers that one order takes out of rotation."""
    by_order: dict[tuple[int, int, str, str], list[admin.Engine]] = defaultdict(list)
    for each in facts.engines:
        order = each.ejection
        # One without a beginning has ended; a front end follows within a minute.
        if each.connected and order.HasField("since") and order.until.ToNanoseconds() > facts.now:
            told = (order.since.ToNanoseconds(), order.until.ToNanoseconds(), order.author, order.reason)
            by_order[told].append(each)
    for (since, until, author, reason), found in sorted(by_order.items(), key=lambda item: item[0]):
        keys = words.keys_of(words.key_of(each.key) for each in found)
        by, why = author or "unknown", f": {words.cut(reason)}" if reason else ""
        unsure = words.keys_of(words.key_of(each.key) for each in found if not each.ejection.in_force)
        evidence = [
            Evidence(
                f"ordered {words.ago(since, facts.now)} by {by}{why}; "
                f"ends in {words.span(max(1, (until - facts.now) // NANOS))}"
            )
        ]
        if unsure:
            said = (
                "whether they answered so then is not known"
                if facts.past
                else "they have not said that they answer so"
            )
            evidence.append(Evidence(f"front ends of {words.engines(unsure)}: {said}"))
        yield FoundCause(
            "out_of_rotation",
            f"{words.engines(keys)} {'is' if len(keys) == 1 else 'are'} {'to go ' if unsure else ''}out of rotation "
            f"by order of {by}: routers that ask for readiness send no requests there{' then' if unsure else ''}",
            keys,
            tuple(evidence),
            other_harm=_STANDING_SECONDS * len(keys),
            since=sane(facts, since),
            confidence=Confidence.POSSIBLE if unsure else Confidence.CERTAIN,
            alternatives=("the order is meant: it ends by itself",),
            commands=(f"agentctl eject off {' '.join(map(str, keys[:_NAMED]))}", "agentctl get audit"),
        )


def _drills(facts: Facts, shares: Attribution) -> Iterator[FoundCause]:
    failures = [each for each in facts.present.failures if each.rehearsal]
    for drill in facts.drills:
        if 0 < drill.expires.ToNanoseconds() <= facts.now:
            continue
        keys = words.keys_of(words.key_of(each.key) for each in drill.engines)
        yield _drill(facts, drill, keys, [each for each in shares.drilled if each.key in keys], len(failures))
        failures = []
    if failures and not facts.drills:
        keys = words.keys_of(each.key for each in failures)
        failed = sum(each.outcome == common.OUTCOME_FAILED for each in shares.drilled)
        yield FoundCause(
            "drill_ended",
            f"a fault drill that is over made transfers fail on {words.engines(keys)}",
            keys,
            (
                Evidence(
                    f"{words.count(len(failures), 'failure')} of a drill in {words.span(facts.present.seconds)}"
                ),
            ),
            requests=len({each.request_id for each in failures if each.request_id}),
            failed=failed,
            confidence=Confidence.CERTAIN,
            since=first_sign(facts, (each.time for each in failures)),
            commands=("agentctl get audit",),
        )


def _drill(
    facts: Facts, drill: admin.Drill, keys: tuple[EngineKey, ...], rows: list[LoadEnd], failures: int
) -> FoundCause:
    mode, peer = label(common.FailureMode, drill.spec.mode), drill.spec.peer
    author = drill.spec.author or "unknown"
    why = f": {words.cut(drill.spec.reason)}" if drill.spec.reason else ""
    return FoundCause(
        "drill",
        f"fault drill {drill.id} by {author} runs on {words.engines(keys)}",
        keys,
        (
            Evidence(
                f"{mode} failures at rate {drill.spec.rate:g}, since "
                f"{words.ago(drill.started.ToNanoseconds(), facts.now)}{why}"
            ),
            Evidence(
                f"{words.count(failures, 'failure')} and {words.count(len(rows), 'request')} of drills in "
                f"{words.span(facts.present.seconds)}"
            ),
        ),
        peer=peer,
        requests=len({each.request_id for each in rows}),
        failed=sum(each.outcome == common.OUTCOME_FAILED for each in rows),
        other_harm=_STANDING_SECONDS,
        since=sane(facts, drill.started.ToNanoseconds()),
        confidence=Confidence.CERTAIN,
        alternatives=("the drill is meant: what it causes ends with it",),
        commands=(f"agentctl drill stop {drill.id}",),
    )


def _quarantines(facts: Facts, shares: Attribution) -> Iterator[FoundCause]:
    """Yield operators' quarantines of peers of which no failure is known, those that were lifted too."""
    failing = {(each.key, each.peer) for each in (*facts.present.failures, *facts.before.failures)}
    by_peer: dict[str, list[admin.Quarantine]] = defaultdict(list)
    for order in facts.quarantines:
        ordered = order.author and order.state == QUARANTINE_STATE_OPEN
        if ordered and (words.key_of(order.key), order.peer.address) not in failing:
            by_peer[order.peer.address].append(order)
    decided: dict[str, list[LoadEnd]] = defaultdict(list)
    for each in shares.ordered:
        decided[each.peer].append(each)
    for peer, orders in sorted(by_peer.items()):
        yield _quarantine(facts, peer, orders, decided.pop(peer, []))
    for peer, rows in sorted(decided.items()):
        if not any((each.key, peer) in failing for each in rows):
            yield _lifted(facts, peer, rows)


def _quarantine(facts: Facts, peer: str, orders: list[admin.Quarantine], rows: list[LoadEnd]) -> FoundCause:
    keys = words.keys_of(words.key_of(each.key) for each in orders)
    first = orders[0]
    why = f": {words.cut(first.reason)}" if first.reason else ""
    return FoundCause(
        "healthy_peer_quarantined",
        f"peer {peer} is in quarantine by order of {first.author} on {words.engines(keys)}, and no failure of it is known",
        keys,
        (Evidence(f"ordered by {first.author}{why}"), _decided(facts, rows)),
        peer=peer,
        requests=len(rows),
        failed=sum(each.outcome == common.OUTCOME_FAILED for each in rows),
        other_harm=_STANDING_SECONDS,
        since=first_sign(facts, (each.time for each in rows)),
        alternatives=(
            "the peer failed before the time that was looked at: agentctl describe peer has all of its failures",
        ),
        commands=(f"agentctl quarantine lift {peer}", f"agentctl describe peer {peer}"),
    )


def _lifted(facts: Facts, peer: str, rows: list[LoadEnd]) -> FoundCause:
    """Return the cause of a quarantine that is over: if somebody ordered it, that is in the audit log."""
    keys = words.keys_of(each.key for each in rows)
    return FoundCause(
        "healthy_peer_quarantined",
        f"peer {peer} was in quarantine on {words.engines(keys)}, and no failure of it is known",
        keys,
        (_decided(facts, rows),),
        peer=peer,
        requests=len(rows),
        failed=sum(each.outcome == common.OUTCOME_FAILED for each in rows),
        since=first_sign(facts, (each.time for each in rows)),
        until=max(each.time for each in rows),
        commands=("agentctl get audit", f"agentctl describe peer {peer}"),
    )


def _decided(facts: Facts, rows: list[LoadEnd]) -> Evidence:
    return Evidence(
        f"{words.count(len(rows), 'request')} decided by the quarantine in {words.span(facts.present.seconds)}"
    )


def cut_off_causes(facts: Facts, shares: Attribution) -> Iterator[FoundCause]:
    """Yield cut-off peers without a failure in the window."""
    failing = {peer for _, peer in shares.peers}
    ordered = {(words.key_of(each.key), each.peer.address) for each in facts.quarantines if each.author}
    invalid = _by_peer(facts, failing, lambda each: each.status.upstream_invalid)
    for peer, keys in sorted(invalid.items()):
        yield FoundCause(
            "upstream_invalid_peer",
            f"vLLM itself no longer reads from peer {peer} on {words.engines(keys)}, until that peer starts anew",
            words.keys_of(keys),
            (Evidence("it is in vLLM's list of invalid remote engines"),),
            peer=peer,
            other_harm=_CUT_OFF_SECONDS * len(keys),
            confidence=Confidence.CERTAIN,
            alternatives=("the peer has restarted, and its new engine id is not known here yet",),
            commands=(f"agentctl describe peer {peer}",),
        )
    quarantined = _by_peer(
        facts,
        failing | set(invalid),
        lambda each: (
            each.status.quarantine == QUARANTINE_STATE_OPEN
            and (words.key_of(each.key), each.peer.address) not in ordered
        ),
    )
    for peer, keys in sorted(quarantined.items()):
        yield FoundCause(
            "peer_stays_quarantined",
            f"peer {peer} is still in quarantine on {words.engines(keys)}, and did not fail in the last "
            f"{words.span(facts.present.seconds)}",
            words.keys_of(keys),
            (Evidence("the engine put it there; a probe is sent when the quarantine ends"),),
            peer=peer,
            other_harm=_CUT_OFF_SECONDS * len(keys),
            alternatives=("an incompatible peer: that quarantine lasts until the peer starts anew",),
            commands=(f"agentctl describe peer {peer}", f"agentctl quarantine lift {peer}"),
        )


def _by_peer(
    facts: Facts, left_out: set[str], fits: Callable[[admin.PeerSummary], bool]
) -> dict[str, list[EngineKey]]:
    found: dict[str, list[EngineKey]] = defaultdict(list)
    for each in facts.peers:
        if each.peer.address not in left_out and not each.retired and fits(each):
            found[each.peer.address].append(words.key_of(each.key))
    return found
