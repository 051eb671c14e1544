"""What surrounds a peer in trouble: the other peers of the engine that reports it, and the engine behind its address."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent import badness
from penstock.agent.diagnosis.facts import EC, KV, Evidence, words
from penstock.proto.names import ENGINE_CORE, NANOS, label
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.agent.diagnosis.facts import Attribution, Facts, Failure
    from penstock.agent.model import EngineKey

# Failures that say nothing of the peer: another's, and those of leases.
_NOT_OF_THE_PEER = frozenset(
    {common.FAILURE_MODE_COLLATERAL, common.FAILURE_MODE_EXPIRED, common.FAILURE_MODE_LATE_READ}
)

# The role of who sends, as labels and the log have it, by channel.
_PRODUCERS: Final[dict[int, str]] = {EC: "encoder", KV: "prefill"}

NO_SERVERS: Final = badness.NO_SERVERS


class PeersInUse(NamedTuple):
    """The peers of each engine in the window: those that fail there, and all."""

    failing: Mapping[EngineKey, set[str]]
    used: Mapping[EngineKey, set[str]]

    @classmethod
    def of(cls, facts: Facts) -> PeersInUse:
        """Return those of *facts*."""
        failing: dict[EngineKey, set[str]] = defaultdict(set)
        used: dict[EngineKey, set[str]] = defaultdict(set)
        for each in facts.present.failures:
            if _is_its_own(each) and each.peer not in NO_SERVERS:
                failing[each.key].add(each.peer)
                used[each.key].add(each.peer)
        for wait in facts.present.waits:
            if wait.peer:
                used[wait.key].add(wait.peer)
        return cls(failing, used)

    def failing_beside(self, peer: str, seen: Sequence[EngineKey]) -> int:
        """Return how many other peers fail at the one engine that sees *peer* fail; 0 if that says nothing of the engine.

        It does if no other engine sees this peer fail, and the peers that fail there are three, or half of those in use.
        """
        if len(seen) != 1:
            return 0
        failing, used = (names.get(seen[0], set()) for names in self)
        others = len(failing - {peer})
        return others if others > 1 or 2 * len(failing) >= len(used) else 0


def _is_its_own(failure: Failure) -> bool:
    return (
        not failure.rehearsal
        and failure.mode not in _NOT_OF_THE_PEER
        and failure.error_type != common.ERROR_TYPE_INCOMPATIBLE
    )


def lost_engines(facts: Facts, shares: Attribution, channel: int, peer: str) -> Iterator[Evidence]:
    """Yield that the engine at *peer* vanished or said goodbye.

    The agent forgets the address of an engine that is away. Where no engine has the address of *peer*, and no other peer in
    trouble is like that, it is the producer that is away; encoders are few, so they need not be alone.
    """
    places = {
        words.key_of(each.key): each.facts.side_channel for each in facts.engines if each.facts.side_channel
    }
    role = _PRODUCERS.get(channel)
    homeless = {name for of, name in shares.peers if of == channel} - set(places.values()) - NO_SERVERS
    fits = peer in homeless and (channel == EC or len(homeless) == 1)
    lost = {
        each.key: each
        for each in reversed(facts.present.losses)
        if each.process == ENGINE_CORE
        and (places[each.key] == peer if each.key in places else fits and each.role == role)
    }
    for key, loss in lost.items():
        yield Evidence(f"engine {key} vanished without a goodbye {words.ago(loss.time, facts.now)}")
    for engine in facts.engines:
        key, left = words.key_of(engine.key), engine.last_seen.ToNanoseconds()
        here = (
            places[key] == peer
            if key in places
            else fits and label(common.Role, engine.role) == role and _is_in(facts, left)
        )
        if engine.said_goodbye and not engine.connected and here and key not in lost:
            yield Evidence(f"engine {key} said goodbye and ended {words.ago(left, facts.now)}")


def _is_in(facts: Facts, time: int) -> bool:
    """Return whether a time, nanoseconds, is in the window."""
    return (facts.now - time) / NANOS <= facts.present.seconds
