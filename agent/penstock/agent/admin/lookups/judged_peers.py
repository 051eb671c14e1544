"""What the judge says of peers: its lasting causes about them as conditions. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Final

from penstock.agent.admin.lookups.known_peers import Condition
from penstock.agent.badness import badness
from penstock.agent.model import EngineKey
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.agent.admin.lookups.known_peers import PeerKey
    from penstock.agent.metrics import PeerWindows

_UNREACHABLE: Final = (
    "peer_refuses",
    "peer_resets",
    "peer_times_out",
    "peer_fails",
    "encoder_fails",
    "addresses_refuse",
)
_KINDS: Final[dict[str, admin.PeerCondition]] = {
    "weights_differ": admin.PEER_CONDITION_OTHER_WEIGHTS,
    "wrong_engine_at_address": admin.PEER_CONDITION_WRONG_ENGINE,
    "incompatible_peer": admin.PEER_CONDITION_INCOMPATIBLE,
    "incompatible_pair": admin.PEER_CONDITION_INCOMPATIBLE,
    **dict.fromkeys(_UNREACHABLE, admin.PEER_CONDITION_UNREACHABLE),
    "peer_corrupts": admin.PEER_CONDITION_FAILING,
    "peer_evicts": admin.PEER_CONDITION_FAILING,
    "peer_speaks_otherwise": admin.PEER_CONDITION_FAILING,
    "peer_slow": admin.PEER_CONDITION_SLOW,
    "encoder_slow": admin.PEER_CONDITION_SLOW,
}
_OF_PAIRS: Final = frozenset({"incompatible_pair", "incompatible_peer"})
# True while no transfer succeeds.
_WITHOUT_SUCCESS: Final = frozenset(
    {
        admin.PEER_CONDITION_UNREACHABLE,
        admin.PEER_CONDITION_LOST,
        admin.PEER_CONDITION_INCOMPATIBLE,
        admin.PEER_CONDITION_WRONG_ENGINE,
    }
)
# Causes that tell of no attempt: over for a peer from which transfers succeed.
_LOSSES: Final = frozenset({"engine_lost", "engine_away"})
_UNTRIED: Final = _LOSSES | {"incompatible_pair"}
# Of the evidence of a cause about a peer: its engine, which is known here, has gone.
_VANISHED: Final = " vanished without a goodbye"


@dataclass(frozen=True, slots=True)
class Judged:
    """A lasting cause about a peer.

    Attributes:
        condition: that it stands for.
        harm: orders peers of one condition.
        reason: its sentence.
        since: by the agent's clock, nanoseconds; 0 for not known.

    """

    kind: str
    condition: admin.PeerCondition
    harm: float
    reason: str
    since: int

    def as_condition(self, windows: PeerWindows | None, ahead: int) -> Condition | None:
        """Return the condition of a peer with *windows*; None where transfers show that it is over.

        Args:
            ahead: the engine's clock minus the agent's, nanoseconds.

        """
        since = self.since + ahead if self.since else 0
        condition = self.condition
        if condition in _WITHOUT_SUCCESS and windows is not None and windows.succeeds(since):
            if self.kind in _UNTRIED:
                return None
            condition = admin.PEER_CONDITION_FAILING
        return Condition(condition, self.harm, self.reason, since)


@dataclass(frozen=True, slots=True)
class JudgedPeers:
    """The lasting causes by engine and peer.

    Attributes:
        causes: about what an engine sees of a peer.
        lost: of the engines that have gone without a goodbye, by their addresses: for all that know the peer.

    """

    causes: Mapping[PeerKey, list[Judged]] = field(default_factory=dict)
    lost: Mapping[str, Judged] = field(default_factory=dict)

    def condition(
        self, place: PeerKey, live: Condition, windows: PeerWindows | None, ahead: int
    ) -> Condition:
        """Return the worst of what the judge says and of *live*; where both say the same, the judge's words."""
        worst = live
        for each in self._of(place):
            found = each.as_condition(windows, ahead)
            if found is not None and badness(found.condition) >= badness(worst.condition):
                worst = found
        return worst

    def _of(self, place: PeerKey) -> Iterator[Judged]:
        yield from self.causes.get(place, ())
        if place[1] in self.lost:
            yield self.lost[place[1]]


def judged_peers(
    diagnosis: admin.Diagnosis | None, away: Mapping[EngineKey, str], known: Mapping[str, EngineKey]
) -> JudgedPeers:
    """Return what *diagnosis* says of peers.

    Args:
        away: the last addresses of the engines that are not connected.
        known: the engine behind each address.

    """
    causes: dict[PeerKey, list[Judged]] = {}
    lost: dict[str, Judged] = {}
    for cause in _causes(diagnosis):
        if cause.HasField("until"):
            continue
        keys = [EngineKey(key.server, key.engine) for key in cause.engines]
        if cause.kind in _LOSSES:
            gone = {key: away[key] for key in keys if known.get(away.get(key, "")) == key}
            lost.update((address, _judged(cause, admin.PEER_CONDITION_LOST)) for address in gone.values())
        condition = _condition(cause)
        if condition is not None:
            for place in product(keys, (cause.peer,) if cause.peer else cause.peers):
                causes.setdefault(place, []).append(_judged(cause, condition))
    return JudgedPeers(causes, lost)


def _causes(diagnosis: admin.Diagnosis | None) -> Iterator[admin.DiagnosedCause]:
    """Yield the causes, and the pairs of a cause that is about many; other effects say nothing of peers.

    An agent that cannot store what engines send does not know that one of them is lost.
    """
    for cause in diagnosis.causes if diagnosis is not None else ():
        yield cause
        yield from (each for each in cause.effects if each.kind in _OF_PAIRS)


def _condition(cause: admin.DiagnosedCause) -> admin.PeerCondition | None:
    condition = _KINDS.get(cause.kind)
    gone = any(_VANISHED in each.fact for each in cause.evidence)
    return admin.PEER_CONDITION_LOST if gone and cause.kind in _UNREACHABLE else condition


def _judged(cause: admin.DiagnosedCause, condition: admin.PeerCondition) -> Judged:
    return Judged(cause.kind, condition, cause.harm, cause.sentence, cause.since.ToNanoseconds())
