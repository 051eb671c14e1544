"""The peers that engines know, from the counters, the last snapshots and the acknowledged orders; and what the judge says of them."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.admin.lookups.retirement import is_held
from penstock.agent.badness import badness
from penstock.agent.metrics.catalogue import from_log as c
from penstock.agent.model import EngineKey
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_CLOSED

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from penstock.agent.metrics import Aggregator, PeerWindows
    from penstock.agent.sources import EngineView
    from penstock.proto.v1.snapshot_pb2 import Snapshot

PeerKey = tuple[EngineKey, str]

PEER_METRICS: Final = frozenset(
    {c.TRANSFERS, c.TRANSFER_DURATION, c.TRANSFER_END_UNCERTAINTY, c.TRANSFER_FAILURES}
)
"""The metrics that name a peer which an engine moves something to or from."""

UNNAMED: Final = "unknown"
"""Stands for the address of a peer that has none."""

IN_USE: Final = sys.maxsize
"""Later than any entry: an engine uses the peer now."""


@dataclass(frozen=True, slots=True)
class PeerSources:
    """What is known of peers at one moment; read on any thread.

    Attributes:
        snapshots: the last ones of each selected engine's sources.
        ordered: ``QuarantineState`` by acknowledged orders, which are newer than the snapshots.
        ahead: each engine's clock minus the agent's, nanoseconds.
        now: by the agent's clock, nanoseconds.
        selects: whether an engine is selected.
        diagnosis: the newest of all engines; None for the judge itself, and where there is none.
        here: the addresses of the connected engines.
        away: the last addresses of the others.
        encoders_here: where connected engines have their encoder outputs.
        encoders_away: where the others had them last.

    """

    aggregator: Aggregator
    snapshots: Mapping[EngineKey, Sequence[Snapshot]]
    ordered: Mapping[PeerKey, int]
    ahead: Mapping[EngineKey, int]
    now: int
    selects: Callable[[EngineKey], bool] = lambda _: True
    diagnosis: admin.Diagnosis | None = None
    here: Mapping[EngineKey, str] = field(default_factory=dict)
    away: Mapping[EngineKey, str] = field(default_factory=dict)
    encoders_here: Mapping[EngineKey, str] = field(default_factory=dict)
    encoders_away: Mapping[EngineKey, str] = field(default_factory=dict)

    def engines(self) -> dict[str, EngineKey]:
        """Return the engine behind each address; none where several connected ones claim it, or several that are away."""
        found: dict[str, EngineKey] = {}
        for addresses in (self.away, self.encoders_away, self.here, self.encoders_here):
            claims = Counter(addresses.values())
            found.update((address, key) for key, address in addresses.items() if address)
            for address, number in claims.items():
                if number > 1:
                    found.pop(address, None)
        return found

    def gone(self) -> dict[EngineKey, str]:
        """Return the last address of each engine that is away."""
        return {
            key: address
            for addresses in (self.encoders_away, self.away)
            for key, address in addresses.items()
            if address
        }

    def now_of(self, key: EngineKey) -> int:
        """Return the present time by an engine's clock, nanoseconds."""
        return self.now + self.ahead.get(key, 0)


@dataclass(slots=True)
class KnownPeers:
    """The peers of the selected engines.

    Attributes:
        newest: by engine and address the time of the newest entry by that engine's clock, nanoseconds; 0 for none.
        tried: likewise of the counters' entries only, of those that have any: IN_USE is none.
        present: of those that are in flight, waited for, in quarantine, or invalid to vLLM.

    """

    newest: dict[EngineKey, dict[str, int]] = field(default_factory=dict)
    tried: dict[EngineKey, dict[str, int]] = field(default_factory=dict)
    present: dict[PeerKey, Present] = field(default_factory=dict)


def last_snapshots(views: Iterable[EngineView]) -> dict[EngineKey, list[Snapshot]]:
    """Return the last snapshots of each engine's sources."""
    return {view.key: [live.snapshot for live in view.sources if live.snapshot is not None] for view in views}


def clock_offsets(views: Iterable[EngineView]) -> dict[EngineKey, int]:
    """Return each engine's clock minus the agent's, nanoseconds; 0 where it is not known."""
    ahead: dict[EngineKey, int] = {}
    for view in views:
        for live in view.sources:
            ahead[view.key] = live.clock_offset_nano or ahead.get(view.key, 0)
    return ahead


def known_peers(
    sources: PeerSources, only: Container[str] | None = None, *, between: Callable[[], None] = lambda: None
) -> KnownPeers:
    """Return the peers of the selected engines: of *only* these addresses, None for all.

    *between* is called after each engine.
    """
    known = KnownPeers()
    for key in filter(sources.selects, sources.aggregator.known()):
        known.tried[key] = sources.aggregator.newest_of_peers(key, PEER_METRICS)
        known.newest[key] = dict(known.tried[key])
        between()
    for key, snapshots in sources.snapshots.items():
        between()
        newest = known.newest.setdefault(key, {})
        for snapshot in snapshots:
            _add_statuses(known, key, newest, snapshot)
            _add_waiting(known, key, newest, snapshot)
    _add_orders(known, sources)
    if only is not None:
        for key, newest in known.newest.items():
            known.newest[key] = {address: time for address, time in newest.items() if address in only}
    known.newest = {key: newest for key, newest in known.newest.items() if newest}
    return known


def _present(known: KnownPeers, key: EngineKey, address: str) -> Present:
    return known.present.setdefault((key, address), Present())


def _add_statuses(known: KnownPeers, key: EngineKey, newest: dict[str, int], snapshot: Snapshot) -> None:
    for status in snapshot.peers:
        address = status.peer.address or UNNAMED
        # Tens of thousands: most are connected, and the rest is not asked of these.
        time = IN_USE if status.connected or is_held(status) else status.last_active_unix_nano
        if time >= newest.get(address, 0):
            newest[address] = time
        if status.quarantine or status.upstream_invalid:
            present = _present(known, key, address)
            # The worker reports the connection, the scheduler the quarantine.
            present.quarantine = status.quarantine or present.quarantine


def _add_waiting(known: KnownPeers, key: EngineKey, newest: dict[str, int], snapshot: Snapshot) -> None:
    for flying in snapshot.in_flight:
        address = flying.peer.address or UNNAMED
        newest[address] = max(newest.get(address, 0), IN_USE if flying.count else 0)
        present = _present(known, key, address)
        present.in_flight += flying.count
        present.oldest_in_flight = _earlier(present.oldest_in_flight, flying.oldest_start_time_unix_nano)
    for waiting in snapshot.deferred:
        if waiting.HasField("peer"):
            address = waiting.peer.address or UNNAMED
            newest.setdefault(address, 0)
            present = _present(known, key, address)
            present.deferred += waiting.count
            present.oldest_deferred = _earlier(present.oldest_deferred, waiting.oldest_start_time_unix_nano)


def _add_orders(known: KnownPeers, sources: PeerSources) -> None:
    """Take over what orders say about the peers that an engine reports."""
    for (key, address), state in sources.ordered.items():
        reported = (status for snapshot in sources.snapshots.get(key, ()) for status in snapshot.peers)
        if any((status.peer.address or UNNAMED) == address for status in reported):
            _present(known, key, address).quarantine = state


def _earlier(one: int, other: int) -> int:
    """Return the earlier of two times; 0 means unknown."""
    return min(one, other) if one and other else one or other


class Condition(NamedTuple):
    """What is wrong now.

    Attributes:
        severity: orders peers of one condition, the worst highest.
        reason: in words; empty for OK and QUARANTINED, which the status explains.
        since: by the engine's clock, nanoseconds; 0 for not known.
        cause: the kind of the worst lasting cause of the diagnosis, whatever the condition is; empty for none.

    """

    condition: admin.PeerCondition
    severity: float = 0.0
    reason: str = ""
    since: int = 0
    cause: str = ""


@dataclass(slots=True)
class Present:
    """What an engine's last snapshots and acknowledged orders say about a peer; times in nanoseconds, 0 for none.

    Attributes:
        quarantine: ``QuarantineState``.

    """

    in_flight: int = 0
    oldest_in_flight: int = 0
    deferred: int = 0
    oldest_deferred: int = 0
    quarantine: int = 0

    @property
    def is_quarantined(self) -> bool:
        """Whether loads from it are kept back, all or all but a probe."""
        return self.quarantine > QUARANTINE_STATE_CLOSED


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
    "engine_id_shared": admin.PEER_CONDITION_SHARED_ID,
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
        return Condition(condition, self.harm, self.reason, since, self.kind)


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
        worst, judged = live, Condition(admin.PEER_CONDITION_UNSPECIFIED)
        for each in self._of(place):
            found = each.as_condition(windows, ahead)
            if found is None:
                continue
            judged = max(judged, found, key=lambda one: badness(one.condition))
            if badness(found.condition) >= badness(worst.condition):
                worst = found
        return worst._replace(cause=judged.cause)

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
