"""Puts each failure, decision and wait of the window under the one thing that caused it. Pure.

A failure that another peer's trouble caused is that peer's; so is the time that a request waited in a queue behind it.
What a fault drill, an order or a policy decided is theirs, and not the peer's.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent import limits
from penstock.agent.diagnosis.facts.fold import UNKNOWN
from penstock.agent.diagnosis.facts.waits import UsualShares, UsualWaits
from penstock.agent.diagnosis.facts.words import key_of
from penstock.proto.deferral_channels import WAITED_CHANNELS
from penstock.proto.names import NANOS, label
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_OPEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.agent.diagnosis.facts.records import Failure, LoadEnd, Wait
    from penstock.agent.diagnosis.facts.windows import Facts
    from penstock.agent.model import EngineKey
    from penstock.proto.v1 import admin_pb2 as admin

KV, EC = common.CHANNEL_KV, common.CHANNEL_EC
# Told by the side that kept the blocks; they have a rule of their own.
_OF_LEASES = frozenset({common.FAILURE_MODE_EXPIRED, common.FAILURE_MODE_LATE_READ})

# A stall of waits for which no transfer was begun: the peer is not to blame for these.
_NOT_STARTED: Final = "load_not_started"
_FAIL: Final = "fail"


class SlowWait(NamedTuple):
    """A wait that took longer than usual; ``excess`` is by how much, seconds."""

    wait: Wait
    usual: float
    excess: float


class HangingWaits(NamedTuple):
    """Requests that wait now; ``age`` is that of the oldest, seconds."""

    key: EngineKey
    number: int
    age: float
    usual: float


@dataclass(slots=True)
class PeerTrouble:
    """What one peer did on one channel, over all engines.

    Attributes:
        failures: its own.
        before: likewise of the time before.
        collateral: failures of others that it caused.
        load_ends: what was decided for requests because of it, by what is not to blame itself.
        waits: how many waits for it there were.
        slow: those that took longer than usual, of which it is to blame.
        slow_before: when waits for it ended that took longer than usual in the time before, nanoseconds.
        usual_share: of waits that took longer than usual in the time before; None if nothing is known of it.
        delayed: waits for other peers behind it, and their seconds.
        present: requests that wait for it now, for longer than usual.
        well: when the waits for it ended that were neither slow nor of a request whose load failed; nanoseconds.
        tried: when the last wait for it ended of a request whose load did not fail, or now where one goes on; nanoseconds, 0 for
            none.

    """

    failures: list[Failure] = field(default_factory=list)
    before: list[Failure] = field(default_factory=list)
    collateral: list[Failure] = field(default_factory=list)
    load_ends: list[LoadEnd] = field(default_factory=list)
    waits: int = 0
    slow: list[SlowWait] = field(default_factory=list)
    slow_before: Sequence[int] = ()
    usual_share: float | None = None
    delayed: list[SlowWait] = field(default_factory=list)
    present: list[HangingWaits] = field(default_factory=list)
    well: list[int] = field(default_factory=list)
    tried: int = 0


def joined(troubles: Iterable[PeerTrouble]) -> PeerTrouble:
    """Return the trouble of several peers as that of one."""
    whole = PeerTrouble()
    for each in troubles:
        for name in ("failures", "before", "collateral", "load_ends", "slow", "delayed", "present", "well"):
            getattr(whole, name).extend(getattr(each, name))
        whole.waits += each.waits
        whole.slow_before = [*whole.slow_before, *each.slow_before]
        whole.tried = max(whole.tried, each.tried)
    whole.failures.sort(key=lambda each: -each.time)
    return whole


PeerOfChannel = tuple[int, str]


@dataclass(slots=True)
class Attribution:
    """The window by cause.

    Attributes:
        peers: by channel and peer.
        drilled: what was decided about failures that a drill caused.
        ordered: what an operator's quarantine decided.
        policies: what policies that are to blame decided.

    """

    peers: dict[PeerOfChannel, PeerTrouble]
    drilled: list[LoadEnd] = field(default_factory=list)
    ordered: list[LoadEnd] = field(default_factory=list)
    policies: dict[PolicyBlame, list[LoadEnd]] = field(default_factory=dict)


def attribute(facts: Facts) -> Attribution:
    """Return the window of *facts* by cause."""
    peers: dict[PeerOfChannel, PeerTrouble] = defaultdict(PeerTrouble)
    shares = Attribution(peers)
    culprits = _add_failures(peers, facts)
    _add_load_ends(shares, facts, culprits)
    _add_waits(peers, facts, culprits)
    shares.peers = dict(peers)
    return shares


def _own(failures: Iterable[Failure]) -> Iterable[Failure]:
    return (
        each
        for each in failures
        if not each.rehearsal and each.mode not in _OF_LEASES and each.channel in (KV, EC)
    )


def _add_failures(peers: dict[PeerOfChannel, PeerTrouble], facts: Facts) -> dict[str, str]:
    """Add the failures; return which peer is to blame, by request, of those that are another's victims."""
    culprits: dict[str, str] = {}
    for each in _own(facts.present.failures):
        if each.mode != common.FAILURE_MODE_COLLATERAL:
            peers[each.channel, each.peer].failures.append(each)
        elif each.caused_by:
            peers[each.channel, each.caused_by].collateral.append(each)
            if each.request_id:
                culprits[each.request_id] = each.caused_by
    for each in _own(facts.before.failures):
        if each.mode != common.FAILURE_MODE_COLLATERAL and (each.channel, each.peer) in peers:
            peers[each.channel, each.peer].before.append(each)
    return culprits


def _add_load_ends(shares: Attribution, facts: Facts, culprits: dict[str, str]) -> None:
    ordered = {
        (key_of(order.key), order.peer.address)
        for order in facts.quarantines
        if order.author and order.state == QUARANTINE_STATE_OPEN
    }
    failing = {(each.key, each.peer) for each in (*facts.present.failures, *facts.before.failures)}
    # What an engine has put in quarantine itself may stay there for longer than the log tells why.
    failing |= {(key_of(each.key), each.peer.address) for each in facts.quarantines if not each.author}

    def is_by_order(each: LoadEnd) -> bool:
        # Without a failure only an operator puts a peer in quarantine, and has lifted that since.
        place = (each.key, each.peer)
        return each.decided_by == common.DECIDED_BY_QUARANTINE and (place in ordered or place not in failing)

    blames = PolicyBlames(facts)
    for each in facts.present.load_ends:
        blame = blames.of(each)
        if each.rehearsal:
            shares.drilled.append(each)
        elif is_by_order(each):
            shares.ordered.append(each)
        elif blame is not None:
            shares.policies.setdefault(blame, []).append(each)
        else:
            peer = culprits.get(each.request_id, each.peer)
            shares.peers[each.channel, peer].load_ends.append(each)


def _add_waits(peers: dict[PeerOfChannel, PeerTrouble], facts: Facts, culprits: dict[str, str]) -> None:
    usual = UsualWaits(facts)
    shares = UsualShares(facts, usual, WAITED_CHANNELS)
    unlucky = {each.request_id for each in facts.present.failures}
    unlucky |= {each.request_id for each in facts.present.load_ends}
    behind: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for delay in facts.present.delays:
        if delay.request_id and delay.caused_by:
            behind[delay.request_id].append((delay.caused_by, delay.seconds))
    for wait in facts.present.waits:
        channel = WAITED_CHANNELS.get(wait.reason)
        if channel is None or wait.ending == common.DEFERRAL_ENDING_ENGINE_LOST:
            continue
        peer = wait.peer or UNKNOWN
        peers[channel, peer].waits += 1
        if wait.request_id not in unlucky:
            peers[channel, peer].tried = max(peers[channel, peer].tried, wait.time)
        slow = usual.slow(wait)
        if slow is None:
            if wait.ending == common.DEFERRAL_ENDING_READY and wait.request_id not in unlucky:
                peers[channel, peer].well.append(wait.time)
            continue
        peers[channel, peer].usual_share = shares.of(channel, wait.peer)
        peers[channel, peer].slow_before = shares.slow(channel, wait.peer)
        _share_wait(peers, channel, SlowWait(wait, *slow), behind.get(wait.request_id, ()), culprits)
    _add_hanging(peers, facts, usual)


def _add_hanging(peers: dict[PeerOfChannel, PeerTrouble], facts: Facts, usual: UsualWaits) -> None:
    for engine in facts.engines:
        unstarted = {each.peer: each.count for each in engine.stalls if each.kind == _NOT_STARTED}
        for row in engine.deferred if engine.connected else ():
            channel = WAITED_CHANNELS.get(row.reason)
            hanging = usual.hanging(key_of(engine.key), row)
            peer = row.peer.address or UNKNOWN
            number = row.count - (unstarted.get(peer, 0) if channel == KV else 0)
            if channel is not None and hanging is not None and number > 0:
                age, least = hanging
                peers[channel, peer].present.append(HangingWaits(key_of(engine.key), number, age, least))
    for place in _going_on(facts):
        if place in peers:
            peers[place].tried = facts.now


def _going_on(facts: Facts) -> Iterator[PeerOfChannel]:
    """Yield the peers for which a request waits now, or from which something is read."""
    for engine in facts.engines:
        if engine.connected:
            yield from (
                (each.channel, each.peer.address or UNKNOWN) for each in engine.in_flight if each.count
            )
            for row in engine.deferred:
                channel = WAITED_CHANNELS.get(row.reason)
                if channel is not None and row.count:
                    yield channel, row.peer.address or UNKNOWN


def _share_wait(
    peers: dict[PeerOfChannel, PeerTrouble],
    channel: int,
    slow: SlowWait,
    behind: Iterable[tuple[str, float]],
    culprits: dict[str, str],
) -> None:
    """Give a slow wait to the peer that it was for, and parts of it to those that it waited behind."""
    wait, left = slow.wait, slow.excess
    culprit = culprits.get(wait.request_id)
    if culprit is not None and culprit != wait.peer:
        peers[channel, culprit].delayed.append(slow)
        return
    for peer, seconds in behind:
        part = min(left, seconds)
        if peer != wait.peer and part > 0:
            peers[channel, peer].delayed.append(SlowWait(wait, slow.usual, part))
            left -= part
    # What is left of a wait behind others is as long as a wait that was never slow.
    if left == slow.excess or left > slow.usual:
        peers[channel, wait.peer or UNKNOWN].slow.append(SlowWait(wait, slow.usual, left))


class PolicyBlame(NamedTuple):
    """A generation of a policy that says ``fail``.

    Attributes:
        changed: nanoseconds; 0 if it is not known.
        field: that says it: ``kvLoadFailure.action``.

    """

    name: str
    generation: int
    author: str
    changed: int
    field: str


class PolicyBlames:
    """Which policies are to blame; what is asked for each load is found once for all that are alike.

    A policy is to blame that was changed since the beginning of the time that is compared with; an older one is how things
    are, and what makes the loads fail is to blame. So is the policy under which several peers' loads fail.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._start = facts.now - int((facts.present.seconds + facts.before.seconds) * NANOS)
        self._found: dict[tuple[object, ...], PolicyBlame | None] = {}
        self._peers: defaultdict[tuple[object, ...], set[str]] = defaultdict(set)
        for each in facts.present.load_ends:
            self._peers[each.policy_hash, each.channel, each.outcome].add(each.peer)

    def of(self, end: LoadEnd) -> PolicyBlame | None:
        """Return the policy that is to blame for *end*; None if none is, or its request did not fail."""
        if end.outcome != common.OUTCOME_FAILED or end.decided_by != common.DECIDED_BY_POLICY:
            return None
        place = (end.key, end.channel, end.policy_hash)
        if place not in self._found:
            self._found[place] = self._blame(end)
        return self._found[place]

    def _blame(self, end: LoadEnd) -> PolicyBlame | None:
        blame = failing_policy(self._facts, end)
        if blame is None or blame.changed >= self._start:
            return blame
        peers = self._peers[end.policy_hash, end.channel, end.outcome]
        return blame if len(peers) >= limits.BLAMED_PEERS else None


def failing_policy(facts: Facts, end: LoadEnd) -> PolicyBlame | None:
    """Return the policy that says ``fail`` for the channel of *end*; None if none does, or it is not known."""
    field = f"{label(common.Channel, end.channel)}LoadFailure.action"
    engine = next((each for each in facts.engines if key_of(each.key) == end.key), None)
    present = engine is not None and engine.policy.hash == end.policy_hash
    if engine is not None and present and _action(engine, end.channel) != _FAIL:
        return None
    sources = facts.policies.get((end.key, end.policy_hash), ())
    if not sources and engine is not None and present:
        sources = engine.policies
    for source in sources:
        if field in source.fields:
            return PolicyBlame(
                source.name, source.generation, source.author, source.changed_time_unix_nano, field
            )
    return None


def _action(engine: admin.Engine, channel: int) -> str:
    return engine.policy.kv_action if channel == common.CHANNEL_KV else engine.policy.ec_action
