"""What a cause brings about that would be a cause of its own without it. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.agent import limits
from penstock.agent.diagnosis.facts import Confidence
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.agent.diagnosis.facts import FoundCause
    from penstock.agent.model import EngineKey

BLIND: Final = "agent_blind"
"""An agent that refuses what engines send loses their connections, too."""

_UNREAD: Final = frozenset({"leases_expire", "leases_wait"})
# Nobody reads the blocks of a prefill that the router does not name.
_SYMPTOMS: Final = {
    "no_transfer_parameters": _UNREAD,
    # Who has the blocks is not who was asked for them.
    "addresses_refuse": _UNREAD,
    "wrong_engine_at_address": _UNREAD,
    "engine_id_shared": _UNREAD | {"late_reads"},
    BLIND: frozenset({"engine_away", "engine_lost", "process_lost", "entries_lost"}),
    # A peer that sends what was not asked for, such as the blocks of another request, seems to corrupt it.
    "answers_suspect": frozenset({"peer_corrupts"}),
}
# Nor those of a peer that cannot be read, or must not, or in whose place others are read.
_NOT_READ: Final = frozenset(
    {
        "answers_suspect",
        "healthy_peer_quarantined",
        "incompatible_peer",
        "incompatible_pair",
        "peer_refuses",
        "peer_times_out",
        "peer_fails",
    }
)

# A peer that does not end its part of a load keeps the blocks of that, also when the request has ended.
_HELD: Final = frozenset({"aborted_loads_hold_blocks", "pinned_blocks"})
_HOLDING: Final = frozenset({"peer_slow", "peer_refuses", "peer_resets", "peer_times_out", "peer_fails"})

# No step of an engine ends while a part of it stands still, and what stands still does not talk to the agent either.
_STEP: Final = frozenset({"step_stuck", "no_steps", "steps_without_tokens"})
_OF_THE_ENGINE: Final = {
    "call_stuck": _STEP,
    "rebalance_unfinished": _STEP,
    "worker_silent": frozenset({*_STEP, "process_lost"}),
}

# Of a peer whose handshakes fail: the effect of pairs that cannot shake hands.
_REFUSED: Final = "incompatible_peer"

# Between two signs of one thing, nanoseconds.
_SLACK: Final = int(limits.QUIET_SECONDS * NANOS)


def under_their_causes(causes: list[FoundCause], places: Mapping[EngineKey, str]) -> list[FoundCause]:
    """Return *causes* with each symptom among the effects of what explains it, and not beside it.

    Args:
        causes: all, in any order.
        places: the address of each engine by which others know it.

    """
    below: dict[int, list[int]] = {}
    told: set[int] = set()
    for place, cause in enumerate(causes):
        if place in told:
            continue
        found = [
            number
            for number, each in enumerate(causes)
            if number not in told
            and _explains(cause, each, places)
            and (each.until or not cause.until or 0 < each.begun <= cause.until)
        ]
        told.update(found)
        below[place] = found

    def effects(place: int) -> Iterator[FoundCause]:
        """Yield what the cause at *place* brings about, and what that does in turn."""
        for number in below.get(place, ()):
            yield causes[number]
            yield from causes[number].effects
            yield from effects(number)

    return [
        _with_failures(replace(cause, effects=(*cause.effects, *effects(place))))
        for place, cause in enumerate(causes)
        if place not in told
    ]


def _with_failures(cause: FoundCause) -> FoundCause:
    """Return a cause of pairs with what their failed handshakes did to requests: it is what its effects are."""
    failed = [each for each in cause.effects if each.kind == _REFUSED] if cause.pairs else []
    if not failed:
        return cause
    return replace(
        cause,
        requests=cause.requests + sum(each.requests for each in failed),
        failed=cause.failed + sum(each.failed for each in failed),
        other_harm=cause.other_harm + sum(each.other_harm for each in failed),
        since=min((each.since for each in failed if each.since), default=cause.since),
        confidence=max(cause.confidence, *(each.confidence for each in failed)),
    )


def _explains(cause: FoundCause, other: FoundCause, places: Mapping[EngineKey, str]) -> bool:
    if cause.pairs and other.kind == _REFUSED:
        return all((key, other.peer) in cause.pairs for key in other.engines)
    if other.kind in _SYMPTOMS.get(cause.kind, ()):
        return other.peer in ("", cause.peer)
    if cause.kind in _HOLDING and other.kind in _HELD:
        same = bool(cause.peer) and other.peer == cause.peer and set(other.engines) <= set(cause.engines)
        return cause.confidence != Confidence.POSSIBLE and same and cause.since <= other.since + _SLACK
    if cause.kind in other.blamed:
        # Who holds an engine's blocks stands before what has no room in it.
        of_engine = bool(other.engines) and set(other.engines) <= set(cause.engines)
        return of_engine and cause.confidence != Confidence.POSSIBLE
    if other.kind in _OF_THE_ENGINE.get(cause.kind, ()):
        at_once = other.since <= (cause.until or other.since) and cause.since <= (other.until or cause.since)
        return cause.confidence != Confidence.POSSIBLE and cause.engines == other.engines and at_once
    unread = cause.kind in _NOT_READ and other.kind in _UNREAD
    return unread and bool(other.engines) and all(places.get(key) == cause.peer for key in other.engines)
