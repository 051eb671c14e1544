"""What takes what the agents of both sides know: answers that may be wrong, and what is wrong between two agents. Pure.

The owner of blocks knows that they were read late, the reader who answered; of a pair neither agent knows the other end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.agent.diagnosis import diagnose_pairs, diagnose_shared_ids
from penstock.agent.pairs import shared_ids, versions_apart
from penstock.agent.relay import merged_answers
from penstock.agent.relay.merged_answers import agent_of, qualify
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_DEFAULT, _MAX_SUSPECTS = 100, 1_000
_MAX_UINT32 = (1 << 32) - 1
MAX_LATE_IDS = 1_000
"""Ids that one call may name; what is above it stays without its other side."""

Named = tuple[str, Any]


# What an agent says of a peer that is a pair's other end: then it has seen it itself.
_SEEN: Final = frozenset({"incompatible_pair", "incompatible_peer", "weights_differ"})


def halves(answers: Sequence[Named]) -> list[admin.Suspect]:
    """Return the late reads whose reader is not in the log of their owner's agent, the newest first."""
    found = [each for _, answer in answers for each in answer.suspects if not each.HasField("key")]
    found.sort(key=lambda each: -each.seen.ToNanoseconds())
    return found[:MAX_LATE_IDS]


def qualify_suspects(answers: Iterable[Named]) -> None:
    """Put the agents' names into the engines of *answers*, which are changed."""
    for name, answer in answers:
        for each in answer.suspects:
            for key in ("key", "peer_key"):
                if each.HasField(key):
                    qualify(getattr(each, key), name)


def joined(
    own: Sequence[Named],
    late: Sequence[admin.Suspect],
    readers: Sequence[Named],
    asked: admin.ListSuspectsRequest,
) -> admin.ListSuspectsResponse:
    """Return all suspects, each answer once, newest first.

    Args:
        own: what each agent says by itself, of the selected engines.
        late: the halves of all engines.
        readers: what each agent says about the readers of these.
        asked: the caller's request.

    """
    merged = admin.ListSuspectsResponse()
    for _, answer in (*own, *readers):
        merged.truncated |= answer.truncated
        merged.unreadable_batches = min(merged.unreadable_batches + answer.unreadable_batches, _MAX_UINT32)
    every = [each for _, answer in own for each in answer.suspects]
    found = {_identity(each): each for each in every if each.request_id}
    alone = [each for each in every if not each.request_id and each.HasField("key")]
    selected = {each.peer_request_id for each in every if not each.HasField("key")}
    by_owner = _by_owner(readers)
    for half in late:
        matches = by_owner.get(half.peer_request_id)
        if matches is None:
            alone += [half] if half.peer_request_id in selected else []
            continue
        for match in matches:
            if not match.cleared:
                _join(found.setdefault(_identity(match), match), half, match)
    suspects = sorted([*found.values(), *alone], key=lambda each: -each.seen.ToNanoseconds())
    limit = min(asked.limit or _DEFAULT, _MAX_SUSPECTS)
    merged.truncated |= len(suspects) > limit
    merged.suspects.extend(suspects[:limit])
    return merged


def _by_owner(readers: Sequence[Named]) -> dict[str, list[admin.Suspect]]:
    """Return the readers by the request whose blocks they were to read."""
    found: dict[str, list[admin.Suspect]] = {}
    for _, answer in readers:
        for each in answer.suspects:
            found.setdefault(each.peer_request_id, []).append(each)
    return found


def _identity(suspect: admin.Suspect) -> tuple[str, str, str]:
    return suspect.key.server, suspect.key.engine, suspect.request_id


def _join(present: admin.Suspect, half: admin.Suspect, match: admin.Suspect) -> None:
    """Add to *present* what the owner of the blocks says (*half*), and what the reader says about it (*match*)."""
    present.peer_key.CopyFrom(half.peer_key)
    present.peer_request_id = half.peer_request_id
    for reason, evidence in zip(match.reasons, match.evidence, strict=False):
        if reason not in present.reasons:
            present.reasons.append(reason)
            present.evidence.append(evidence)
    # The owner knows when it was read.
    present.seen.CopyFrom(min((present.seen, half.seen), key=lambda each: each.ToNanoseconds()))
    present.rehearsal = present.rehearsal and half.rehearsal


def causes_between_agents(
    pairs: Sequence[tuple[str, Any]],
    diagnoses: Sequence[tuple[str, Any]],
    request: admin.DiagnoseRequest,
    now: int,
) -> list[admin.DiagnosedCause]:
    """Return the causes of pairs whose two ends are of two agents, and of ids that engines of two have; none of an earlier moment, or of labels and models.

    Args:
        pairs: the agents' ``ListPairs``, by name; their keys become those of the fleet.
        diagnoses: the agents' ``Diagnose``, by name.
        request: what was asked.
        now: nanoseconds.

    """
    asked = request.selector
    if request.HasField("at") or asked.labels or asked.models:
        return []
    wanted = {(key.server, key.engine) for key in asked.engines}
    merged = merged_answers.pairs(pairs, admin.ListPairsRequest())
    seen = {
        cause.peer
        for _, each in diagnoses
        for whole in each.causes
        for cause in (whole, *whole.effects)
        if cause.kind in _SEEN
    }
    found = [
        pair
        for pair in merged.pairs
        if pair.HasField("peer_key")
        and agent_of(pair.key) != agent_of(pair.peer_key)
        and (not (pair.peer.address and pair.peer.address in seen) or versions_apart(pair))
        and (not wanted or {(key.server, key.engine) for key in (pair.key, pair.peer_key)} & wanted)
    ]
    causes = diagnose_pairs(found, now)
    for cause in causes:
        untold = [each for each in cause.effects if not each.peer or each.peer not in seen]
        del cause.effects[:]
        cause.effects.extend(untold)
    shared = [
        group
        for group in shared_ids((each.key, each.role, each.facts) for each in merged.engines)
        if len({agent_of(key) for key in group.keys}) > 1
        and (not wanted or {(key.server, key.engine) for key in group.keys} & wanted)
    ]
    return [*causes, *diagnose_shared_ids(shared, now)]
