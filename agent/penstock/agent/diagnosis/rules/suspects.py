"""Answers that may be wrong because of what they read: failed, exchanged or overwritten blocks, and NaNs.

And engines that go by one connector engine id, of which one is read in the place of the others.
"""

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
    sane,
    words,
)
from penstock.agent.pairs import shared_ids
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import events_pb2 as events

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from penstock.agent.diagnosis.facts import Attribution, Facts
    from penstock.agent.model import EngineKey
    from penstock.agent.pairs import SharedId
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


# What two engines with one id count for before an answer is known to be wrong, seconds.
_SHARED_SECONDS: Final = 60.0
# Engines that evidence names.
_NAMED: Final = 4
_ONE_ID: Final = (
    "NIXL connectors keep peers by it, and read from the one that they met first in the place of all"
)
_GIVEN: Final = Evidence(
    "vLLM makes up an id for each engine unless kv_transfer_config.engine_id is set: take it out of their configuration"
)


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


def shared_causes(facts: Facts, groups: Iterable[SharedId]) -> Iterator[FoundCause]:
    """Yield a cause for each of *groups* of connected engines with one connector engine id."""
    for group in groups:
        keys = words.keys_of(map(words.key_of, group.keys))
        yield _shared_by(facts, group, keys)


def identity_causes(facts: Facts, _shares: Attribution) -> Iterator[FoundCause]:
    """Yield engines with one connector engine id: those that are known here, else by what requests name; or were, by answers."""
    connected = [each for each in facts.engines if each.connected and each.HasField("facts")]
    groups = [] if facts.past else shared_ids((each.key, each.facts.role, each.facts) for each in connected)
    causes = [*shared_causes(facts, groups)]
    yield from causes
    told = {address for group in groups for address in group.addresses if address}
    pairs = defaultdict(list)
    for pair in facts.pairs:
        if pair.other_addresses and not told.issuperset(
            (pair.peer.address, *(each.address for each in pair.other_addresses))
        ):
            pairs[pair.peer.address].append(pair)
    for peer, found in sorted(pairs.items()):
        yield _shared_at(facts, peer, found)
    by_peer = defaultdict(list)
    for each in facts.suspects:
        if events.SUSPECT_REASON_OTHER_ENGINE in each.reasons and each.peer.address not in {*told, *pairs}:
            by_peer[each.peer.address].append(each)
    for peer, suspects in sorted(by_peer.items()):
        yield _shared_before(facts, peer, suspects)


def _misread(facts: Facts, addresses: Collection[str]) -> list[admin.Suspect]:
    """Return the answers of the window that were computed from blocks of another engine at one of *addresses*."""
    return [
        each
        for each in facts.suspects
        if events.SUSPECT_REASON_OTHER_ENGINE in each.reasons and each.peer.address in addresses
    ]


def _answers(facts: Facts, suspects: Sequence[admin.Suspect]) -> tuple[tuple[Evidence, ...], tuple[str, ...]]:
    """Return what the evidence says of answers that may be wrong, and the commands that show them."""
    ids = sorted({each.request_id for each in suspects if each.request_id})
    if not ids:
        return (), ()
    return (
        (
            Evidence(
                f"{words.count(len(ids), 'answer')} of the window may be wrong: {words.named(ids, 'request')}"
            ),
        ),
        (
            f"agentctl get suspects --since {words.window(facts.present.seconds)}",
            f"agentctl explain {ids[0]}",
        ),
    )


def _seen(suspects: Sequence[admin.Suspect]) -> list[int]:
    return [each.seen.ToNanoseconds() for each in suspects if each.HasField("seen")]


def _shared_by(facts: Facts, group: SharedId, keys: tuple[EngineKey, ...]) -> FoundCause:
    suspects = _misread(facts, group.addresses)
    evidence, commands = _answers(facts, suspects)
    names = [words.key_of(key) for key in group.keys]
    return FoundCause(
        "engine_id_shared",
        f"{words.engines(keys)} have one connector engine id ({words.cut(group.engine_id)}): {_ONE_ID}",
        keys,
        (
            *(
                Evidence(f"engine {name}: side channel {address or 'not known'}")
                for name, address in list(zip(names, group.addresses, strict=True))[:_NAMED]
            ),
            *evidence,
            _GIVEN,
        ),
        requests=len(suspects),
        other_harm=_SHARED_SECONDS + SUSPECT_SECONDS * len(suspects),
        since=first_sign(facts, _seen(suspects)),
        confidence=Confidence.CERTAIN if group.is_read else Confidence.POSSIBLE,
        alternatives=()
        if group.is_read
        else ("nothing is read from decode engines: then only push, or a turn that is read back, is wrong",),
        commands=(*commands, f"agentctl diff engine {names[0]} {names[1]}", "agentctl get pairs -o wide"),
    )


def _shared_at(facts: Facts, peer: str, pairs: Sequence[admin.Pair]) -> FoundCause:
    """Return the cause of a peer that is read in the place of others, of which no engine is known here."""
    others = {other.address: other for pair in pairs for other in pair.other_addresses}
    certain = any(
        other.owner == common.ADDRESS_OWNER_OTHER for pair in pairs for other in pair.other_addresses
    )
    keys = words.keys_of(words.key_of(pair.key) for pair in pairs)
    suspects = _misread(facts, {peer})
    evidence, commands = _answers(facts, suspects)
    named = words.named(others, "address")
    transfers = sum(other.transfers for pair in pairs for other in pair.other_addresses)
    return FoundCause(
        "engine_id_shared",
        f"peer {peer} and {named} have one connector engine id: {words.engines(keys)} "
        f"{'reads' if len(keys) == 1 else 'read'} from {peer} what requests ask of the other"
        if certain
        else f"requests of {words.engines(keys)} name {named} for the connector engine id of peer {peer}, from which it is read: "
        "who is there is not known",
        keys,
        (
            Evidence(
                "a second handshake found another NIXL agent there"
                if certain
                else "a second handshake had no answer there"
            ),
            Evidence(f"{words.count(transfers, 'load')} read {peer} instead"),
            *evidence,
            _GIVEN,
        ),
        peer=peer,
        requests=len(suspects),
        other_harm=_SHARED_SECONDS + SUSPECT_SECONDS * len(suspects),
        since=sane(facts, min((each.first_time_unix_nano for each in others.values()), default=0)),
        confidence=Confidence.CERTAIN if certain else Confidence.POSSIBLE,
        alternatives=()
        if certain
        else (
            "the engine has moved, and the router names its old address",
            "it is one engine with two addresses, of which one does not answer",
        ),
        commands=(*commands, f"agentctl describe peer {peer}", "agentctl get pairs -o wide"),
    )


def _shared_before(facts: Facts, peer: str, suspects: Sequence[admin.Suspect]) -> FoundCause:
    """Return the cause of answers that were computed from blocks of another engine, which share no id any more."""
    keys = words.keys_of(words.key_of(each.key) for each in suspects if each.HasField("key"))
    evidence, commands = _answers(facts, suspects)
    seen = _seen(suspects)
    return FoundCause(
        "engine_id_shared",
        f"{words.engines(keys)} read from {words.peer(peer)} what requests asked of other engines with its connector engine id: "
        f"{words.count(len(suspects), 'answer')} may be wrong",
        keys,
        (*evidence, _GIVEN),
        peer=peer,
        requests=len(suspects),
        other_harm=SUSPECT_SECONDS * len(suspects),
        since=first_sign(facts, seen),
        until=max(seen, default=0) or facts.now,
        confidence=Confidence.CERTAIN,
        commands=commands,
    )
