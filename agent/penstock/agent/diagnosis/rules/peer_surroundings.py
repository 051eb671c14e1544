"""What surrounds a peer in trouble: the other peers of the engine that reports it, and the engine behind its address."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent import badness
from penstock.agent.diagnosis.facts import EC, KV, Evidence, words
from penstock.proto.names import ENGINE_CORE, NANOS, label
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.agent.diagnosis.facts import Attribution, Facts, Failure, Loss
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


@dataclass(frozen=True, slots=True)
class LostEngines:
    """The engines that vanished or said goodbye in the window, by the addresses that they may have had.

    The agent forgets the address of an engine that is away. Where no engine has the address of a peer, and no other peer in
    trouble is like that, it is the producer that is away; encoders are few, so they need not be alone.

    Attributes:
        homeless: the peers in trouble whose address no engine has, by channel.
        vanished: the newest loss of each EngineCore.
        ended: when each engine that said goodbye was last seen, nanoseconds, and its role.

    """

    now: int
    places: Mapping[EngineKey, str]
    homeless: Mapping[int, set[str]]
    vanished: Mapping[EngineKey, Loss]
    ended: Mapping[EngineKey, tuple[int, str]]

    @classmethod
    def of(cls, facts: Facts, shares: Attribution) -> LostEngines:
        """Return those of *facts*."""
        places = {
            words.key_of(each.key): each.facts.side_channel
            for each in facts.engines
            if each.facts.side_channel
        }
        homeless: dict[int, set[str]] = defaultdict(set)
        for channel, name in shares.peers:
            homeless[channel].add(name)
        taken = {*places.values(), *NO_SERVERS}
        cores = [each for each in reversed(facts.present.losses) if each.process == ENGINE_CORE]
        ended = {
            words.key_of(each.key): (each.last_seen.ToNanoseconds(), label(common.Role, each.role))
            for each in facts.engines
            if each.said_goodbye and not each.connected
        }
        return cls(
            facts.now,
            places,
            {channel: names - taken for channel, names in homeless.items()},
            {each.key: each for each in cores},
            # Of one without an address, what ended before the window says nothing of it.
            {
                key: (left, role)
                for key, (left, role) in ended.items()
                if key in places or (facts.now - left) / NANOS <= facts.present.seconds
            },
        )

    def told(self, channel: int, peer: str) -> Iterator[Evidence]:
        """Yield that the engine at *peer* vanished or said goodbye."""
        homeless, role = self.homeless.get(channel, set()), _PRODUCERS.get(channel)
        fits = peer in homeless and (channel == EC or len(homeless) == 1)

        def is_here(key: EngineKey, its_role: str) -> bool:
            return self.places[key] == peer if key in self.places else fits and its_role == role

        lost = {key: each for key, each in self.vanished.items() if is_here(key, each.role)}
        for key, loss in lost.items():
            yield Evidence(f"engine {key} vanished without a goodbye {words.ago(loss.time, self.now)}")
        for key, (left, its_role) in self.ended.items():
            if key not in lost and is_here(key, its_role):
                yield Evidence(f"engine {key} said goodbye and ended {words.ago(left, self.now)}")
