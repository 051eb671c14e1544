"""Engines, orders and policies of a moment of the past: from the log, the processes that still run, and the audit log."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.admin.lookups.bounded_scan import EventScan
from penstock.agent.model import AGENT_PROCESS
from penstock.agent.policy.orders import quarantines_for, read_drill, read_ejection, read_quarantine
from penstock.agent.sources import LiveSource, Registry
from penstock.proto.names import ENGINE_CORE, NANOS
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_OPEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.agent.admin.lookups.known_peers import PeerKey
    from penstock.agent.journal import Reader, SourceRow
    from penstock.agent.model import EngineKey, Source
    from penstock.agent.parsing import Target
    from penstock.agent.policy.orders import Ejection, FaultDrill, QuarantineOrder
    from penstock.agent.policy.store import AuditEntry
    from penstock.agent.sources import EngineView

_ENDS: Final = ("source_lost", "source_stopped", "forgotten")
_CHANGES: Final = ("policy_applied", "quarantine_changed")
# A loss is written after the grace time; one that was written so long after the moment may have begun before it.
_HINDSIGHT: Final = 600 * NANOS
# How far back changes are looked for: no longer than the log is kept for other questions.
_BACK: Final = 7 * 86_400 * NANOS
# Batches in which a sign of an engine that came back is looked for.
_SIGN_BATCHES: Final = 50_000
_BY_ORDER: Final = "operator"


CHANGES_READ = 4_096
"""Entries of the audit log, the newest."""
_OF_POLICIES = frozenset({"apply", "import", "release", "rollback", "delete"})
# What is written of an order of another version.
_UNREADABLE = (ValueError, KeyError, TypeError)


class AppliedPolicy(NamedTuple):
    """What an engine had taken: the source that said so, the hash in force, and whether it was paused."""

    source: Source
    hash: str
    paused: bool


class PastEngines(NamedTuple):
    """What engines were.

    Attributes:
        views: without snapshots; who was away and had not been lost yet is not connected.
        applied: the policy of each connected engine, where the log tells.
        quarantined: peers that engines had cut off themselves.
        unsure: engines of which the log does not tell whether they were back.
        cut: there was too much to read for some of this.

    """

    views: Sequence[EngineView]
    applied: Mapping[EngineKey, AppliedPolicy]
    quarantined: Sequence[PeerKey]
    unsure: Sequence[EngineKey]
    cut: bool


class _End(NamedTuple):
    """How a source went: the batch that says so, when that was received and the source seen last, and whether it stopped on purpose."""

    batch: int
    received: int
    seen: int
    stopped: bool


class _Ends(NamedTuple):
    """How sources went, by epoch.

    Attributes:
        gone: the newest before the moment.
        going: of sources that were away at the moment, and were found lost or stopped later.
        forgotten: when engines were forgotten.

    """

    gone: Mapping[int, _End]
    going: Mapping[int, _End]
    forgotten: Mapping[EngineKey, int]
    cut: bool

    def of(self, row: SourceRow, at: int) -> _End | None:
        """Return how a source went; None if it had not, or said goodbye. It may have come back since."""
        epoch = row.source.epoch
        end = self.going.get(epoch) or self.gone.get(epoch)
        # One that was lost before it came back, and said goodbye.
        earlier = end is not None and end.received < row.closed_unix_nano <= at
        return None if earlier else end


def past_engines(
    reader: Reader, at: int, *, present: Iterable[LiveSource] = (), retire_seconds: float
) -> PastEngines:
    """Return the engines at a moment.

    Args:
        reader: of the log.
        at: nanoseconds, by the agent's clock.
        present: the sources of now: one that has been away since before the moment was away then.
        retire_seconds: for how long an engine that is away is known.

    """
    ends = _ends(reader, at)
    until = reader.last_until(at)
    away = {
        live.source.epoch: live.last_seen_unix_nano
        for live in present
        if not live.connected and live.last_seen_unix_nano <= at
    }
    oldest = at - int(retire_seconds * NANOS)
    registry, unsure = Registry(lambda: at), set()
    for row in reader.source_rows():
        source, epoch = row.source, row.source.epoch
        if source.process == AGENT_PROCESS or row.opened_unix_nano > at:
            continue
        closed, end = 0 < row.closed_unix_nano <= at, ends.of(row, at)
        if end is None and not closed and epoch in away:
            end = _End(0, 0, away[epoch], stopped=False)
        elif end is not None and not closed and epoch not in ends.going:
            if reader.newest_of(epoch, end.batch, until, _SIGN_BATCHES):
                end = None
            else:
                unsure.add(source.key)
        gone = closed or end is not None
        seen = end.seen if end is not None else row.closed_unix_nano if closed else at
        if gone and seen <= max(ends.forgotten.get(source.key, 0), oldest):
            continue
        goodbye = end.stopped if end is not None else gone and reader.ends_with_goodbye(row)
        registry.add(LiveSource(source, not gone, seen, row.watermark, said_goodbye=goodbye))
    views = registry.engines()
    applied, quarantined, cut = _changes(reader, at, until, views)
    return PastEngines(
        views,
        applied,
        quarantined,
        sorted(unsure & {view.key for view in views if not view.connected}),
        cut or ends.cut,
    )


def _ends(reader: Reader, at: int) -> _Ends:
    """Read how sources went; the agent's own word has the agent's own time."""
    gone: dict[int, _End] = {}
    going: dict[int, _End] = {}
    forgotten: dict[EngineKey, int] = {}
    scan = EventScan.newest(
        reader, kinds=_ENDS, since_unix_nano=max(at - _BACK, 0), until=reader.last_until(at + _HINDSIGHT)
    )
    for found in scan:
        event, then = found.event, found.event.time_unix_nano
        if event.HasField("forgotten"):
            if then <= at and not event.forgotten.HasField("peer"):
                forgotten.setdefault(found.source.key, then)
            continue
        stopped = event.HasField("source_stopped")
        body = event.source_stopped if stopped else event.source_lost
        logged = found.logged
        end = _End(logged.id, logged.received_unix_nano, body.last_seen_unix_nano, stopped)
        if then <= at:
            gone.setdefault(body.epoch, end)
        elif body.last_seen_unix_nano <= at:
            going[body.epoch] = end
    return _Ends(gone, going, forgotten, scan.cut)


def _changes(
    reader: Reader, at: int, until: int, views: Iterable[EngineView]
) -> tuple[dict[EngineKey, AppliedPolicy], list[PeerKey], bool]:
    """Return what the processes that were connected had told last of their policy and of their peers."""
    connected = {
        live.source.epoch: live.source
        for view in views
        if view.connected
        for live in view.sources
        if live.connected and live.source.key == view.key
    }
    applied: dict[EngineKey, AppliedPolicy] = {}
    states: dict[PeerKey, bool] = {}
    scan = EventScan.newest(reader, kinds=_CHANGES, since_unix_nano=max(at - _BACK, 0), until=until)
    for found in scan if connected else ():
        source = connected.get(found.logged.epoch)
        if source is None:
            continue
        policy, change = found.event.policy_applied, found.event.quarantine_changed
        if found.event.HasField("quarantine_changed"):
            cut_off = change.state == QUARANTINE_STATE_OPEN and change.reason != _BY_ORDER
            states.setdefault((source.key, change.peer.address), cut_off)
        elif policy.accepted and source.process == ENGINE_CORE:
            applied.setdefault(source.key, AppliedPolicy(source, policy.hash, policy.cause == "pause"))
    return applied, [place for place, cut_off in sorted(states.items()) if cut_off], scan.cut


class PastOrders(NamedTuple):
    """What was ordered.

    Attributes:
        drills: that ran.
        quarantines: of which some may have ended, the oldest first.
        ejections: in force, by server.
        policy_changes: the newest change of each policy, nanoseconds.
        cut: there were more changes since than are read: orders may be missing.

    """

    drills: Sequence[FaultDrill]
    quarantines: Sequence[QuarantineOrder]
    ejections: Mapping[str, Ejection]
    policy_changes: Mapping[str, int]
    cut: bool

    def quarantines_of(self, target: Target, at: int) -> tuple[QuarantineOrder, ...]:
        """Return the orders about peers that were in force in an engine."""
        return quarantines_for(self.quarantines, target, at)


def past_orders(entries: Sequence[AuditEntry], at: int) -> PastOrders:
    """Return what *entries* of the audit log, the newest first, say of a moment, nanoseconds."""
    drills: dict[str, FaultDrill] = {}
    quarantines: list[QuarantineOrder] = []
    ejections: dict[str, Ejection] = {}
    changes: dict[str, int] = {}
    for entry in reversed(entries):
        change = entry.change
        if entry.time_unix_nano > at:
            break
        if change.action in _OF_POLICIES:
            changes[change.name] = entry.time_unix_nano
        with suppress(*_UNREADABLE):
            if change.action in {"quarantine-add", "quarantine-lift"}:
                quarantines.append(read_quarantine(change.new_manifest))
            elif change.action == "drill-start":
                drill = read_drill(change.new_manifest)
                drills[drill.id] = drill
            elif change.action == "drill-stop":
                drills.pop(read_drill(change.old_manifest).id, None)
            elif change.action == "eject":
                ejection = read_ejection(change.new_manifest)
                ejections[ejection.server] = ejection
            elif change.action == "eject-off":
                ejections.pop(read_ejection(change.old_manifest).server, None)
    return PastOrders(
        [drill for drill in drills.values() if drill.left_nano(at)],
        quarantines,
        {server: order for server, order in ejections.items() if order.left_nano(at)},
        changes,
        len(entries) >= CHANGES_READ and entries[-1].time_unix_nano > at,
    )
