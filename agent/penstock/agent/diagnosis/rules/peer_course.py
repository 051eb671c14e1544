"""The course of a peer's trouble, and what surrounds it: other peers of the engine that reports it, and the engine behind its address."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent import badness, limits
from penstock.agent.diagnosis.facts import EC, KV, Evidence, first_sign, longest_pause, words
from penstock.proto.deferral_channels import WAITED_CHANNELS
from penstock.proto.names import ENGINE_CORE, NANOS, label
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.agent.diagnosis.facts import Attribution, Facts, Failure, Loss, PeerTrouble
    from penstock.agent.model import EngineKey

# Failures that say nothing of the peer: another's, and those of leases.
_NOT_OF_THE_PEER = frozenset(
    {common.FAILURE_MODE_COLLATERAL, common.FAILURE_MODE_EXPIRED, common.FAILURE_MODE_LATE_READ}
)

# The role of who sends, as labels and the log have it, by channel.
_PRODUCERS: Final[dict[int, str]] = {EC: "encoder", KV: "prefill"}

# Nanoseconds after an engine has woken in which a reader still finds out that it has to shake hands again.
_WOKEN: Final = 60 * NANOS

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
        places: the addresses of engines that have told theirs, by channel.
        homeless: the peers in trouble whose address no engine has, by channel.
        vanished: the newest loss of each EngineCore.
        ended: when each engine that said goodbye was last seen, nanoseconds, and its role.

    """

    now: int
    places: Mapping[int, Mapping[EngineKey, str]]
    homeless: Mapping[int, set[str]]
    vanished: Mapping[EngineKey, Loss]
    ended: Mapping[EngineKey, tuple[int, str]]

    @classmethod
    def of(cls, facts: Facts, shares: Attribution) -> LostEngines:
        """Return those of *facts*."""
        places: dict[int, dict[EngineKey, str]] = {
            channel: {words.key_of(key): address for key, address in found if address}
            for channel, found in (
                (KV, [(each.key, each.facts.side_channel) for each in facts.engines]),
                (EC, [(each.key, each.facts.ec_address) for each in facts.engines]),
            )
        }
        homeless: dict[int, set[str]] = defaultdict(set)
        for channel, name in shares.peers:
            homeless[channel].add(name)
        taken = {channel: {*found.values(), *NO_SERVERS} for channel, found in places.items()}
        cores = [each for each in reversed(facts.present.losses) if each.process == ENGINE_CORE]
        ended = {
            words.key_of(each.key): (each.last_seen.ToNanoseconds(), label(common.Role, each.role))
            for each in facts.engines
            if each.said_goodbye and not each.connected
        }
        return cls(
            facts.now,
            places,
            {channel: names - taken.get(channel, set()) for channel, names in homeless.items()},
            {each.key: each for each in cores},
            # Of one without an address, what ended before the window says nothing of it.
            {
                key: (left, role)
                for key, (left, role) in ended.items()
                if any(key in found for found in places.values())
                or (facts.now - left) / NANOS <= facts.present.seconds
            },
        )

    def told(self, channel: int, peer: str) -> Iterator[Evidence]:
        """Yield that the engine at *peer* vanished or said goodbye."""
        homeless, role = self.homeless.get(channel, set()), _PRODUCERS.get(channel)
        places = self.places.get(channel, {})
        fits = peer in homeless and (channel == EC or len(homeless) == 1)

        def is_here(key: EngineKey, its_role: str) -> bool:
            return places[key] == peer if key in places else fits and its_role == role

        lost = {key: each for key, each in self.vanished.items() if is_here(key, each.role)}
        for key, loss in lost.items():
            yield Evidence(f"engine {key} vanished without a goodbye {words.ago(loss.time, self.now)}")
        for key, (left, its_role) in self.ended.items():
            if key not in lost and is_here(key, its_role):
                yield Evidence(f"engine {key} said goodbye and ended {words.ago(left, self.now)}")


def slept(facts: Facts, channel: int, peer: str, trouble: PeerTrouble) -> Iterator[Evidence]:
    """Yield that the engine at *peer* sleeps, or did when something went wrong: vLLM takes its KV caches from the connector."""
    signs = _signs(trouble)
    for engine in facts.engines if channel == KV else ():
        if engine.facts.side_channel != peer:
            continue
        key = words.key_of(engine.key)
        if engine.HasField("asleep_since") and not facts.past:
            since = engine.asleep_since.ToNanoseconds()
            yield Evidence(
                f"engine {key} sleeps since {words.ago(since, facts.now)}: no peer can read from it until it wakes"
            )
        ended = [each for each in facts.present.sleeps if each.key == key]
        newest = max(ended, default=None)
        if newest is not None and any(newest.since <= each <= newest.time + _WOKEN for each in signs):
            span = words.span((newest.time - newest.since) / NANOS)
            yield Evidence(
                f"engine {key} slept for {span} and is back since {words.ago(newest.time, facts.now)}: "
                "peers shake hands with it again"
            )


def is_in_trouble(trouble: PeerTrouble) -> bool:
    """Return whether it is to be told here: not where handshakes are incompatible."""
    if any(each.error_type == common.ERROR_TYPE_INCOMPATIBLE for each in trouble.failures):
        return False
    return bool(trouble.failures or trouble.collateral) or _is_slow(trouble)


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


def end_of(facts: Facts, trouble: PeerTrouble) -> int:
    """Return when the trouble was last seen, nanoseconds, where loads have gone well since; 0 while it lasts.

    Of a peer that is seldom read from, one load is enough after a longer quiet time.
    """
    times = _signs(trouble)
    if trouble.present or not times:
        return 0
    well, quiet = sum(each > times[-1] for each in trouble.well), facts.now - times[-1]
    least = longest_pause(times) * (1.0 if well >= limits.QUIET_COUNT else limits.QUIET_TIMES)
    return times[-1] if well and quiet >= least else 0


def routed_away(facts: Facts, channel: int, peer: str, trouble: PeerTrouble) -> int:
    """Return when the trouble was last seen, nanoseconds, where the router has let go of the peer since; else 0.

    Nobody tried it, although nothing keeps them from it, and each engine that had trouble with it loads well from others.
    """
    times = _signs(trouble)
    if trouble.present or not times or trouble.tried > times[-1]:
        return 0
    quiet = facts.now - times[-1]
    least = max(limits.QUIET_TIMES * longest_pause(times), limits.ROUTED_AWAY_SECONDS * NANOS)
    if quiet < least or any(each.peer.address == peer for each in facts.quarantines):
        return 0
    well = Counter(
        each.key
        for each in facts.present.waits
        if WAITED_CHANNELS.get(each.reason) == channel
        and each.peer not in {peer, *NO_SERVERS}
        and each.time > times[-1]
    )
    # Of an engine that has been stopped, or forgotten since, nothing more can be expected.
    expected = {words.key_of(each.key) for each in facts.engines if not each.said_goodbye}
    readers = [key for key in engines_of(trouble) if key in expected or not facts.engines]
    return times[-1] if all(well[key] >= limits.QUIET_COUNT for key in readers) else 0


def untried_words(facts: Facts, trouble: PeerTrouble) -> str:
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


def begin_of(facts: Facts, trouble: PeerTrouble) -> int:
    """Return when its first sign was seen, nanoseconds: of a slow wait, when that began."""
    waits = (each.wait.time - int(each.wait.seconds * NANOS) for each in (*trouble.slow, *trouble.delayed))
    waiting = (facts.now - int(each.age * NANOS) for each in trouble.present)
    present = (*_signs(trouble), *waits, *waiting)
    if trouble.failures:
        return first_sign(facts, present, (each.time for each in trouble.before))
    return first_sign(facts, present, trouble.slow_before, 0)


def newest_sign(trouble: PeerTrouble) -> int:
    """Return when something last went wrong with the peer, nanoseconds; 0 where nothing has yet, or is not known."""
    return max(_signs(trouble), default=0)


def _signs(trouble: PeerTrouble) -> list[int]:
    """Return when something went wrong with the peer, nanoseconds, sorted."""
    return sorted(
        (
            *(each.time for each in (*trouble.failures, *trouble.collateral)),
            *(each.time for each in trouble.load_ends),
            *(each.wait.time for each in (*trouble.slow, *trouble.delayed)),
        )
    )


def engines_of(trouble: PeerTrouble) -> tuple[EngineKey, ...]:
    """Return the engines that had trouble with the peer, sorted."""
    return words.keys_of(
        [
            *(each.key for each in (*trouble.failures, *trouble.collateral)),
            *(each.key for each in trouble.load_ends),
            *(each.wait.key for each in (*trouble.slow, *trouble.delayed)),
            *(each.key for each in trouble.present),
        ]
    )


def is_usual_known(trouble: PeerTrouble) -> bool:
    """Return whether it is known how long waits for the peer took: of the time before, or in the window, before the first long one."""
    if trouble.usual_share is not None:
        return True
    first = min((each.wait.time - int(each.wait.seconds * NANOS) for each in trouble.slow), default=0)
    return sum(each < first for each in trouble.well) >= limits.USUAL_LOGGED_COUNT
