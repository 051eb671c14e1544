"""Joins both sides of answers that may be wrong: the owner of blocks knows that they were read late, the reader who answered. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.agent.relay.engine_names import qualify
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_DEFAULT, _MAX_SUSPECTS = 100, 1_000
_MAX_UINT32 = (1 << 32) - 1
MAX_LATE_IDS = 1_000
"""Ids that one call may name; what is above it stays without its other side."""

Named = tuple[str, Any]


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
