"""Summaries of peers by engine, from the metrics aggregator, the log and the snapshots."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.agent.admin.support.bounded_scan import EventScan
from penstock.agent.admin.support.messages import MAX_UINT32, clamp_unsigned, key_message, timestamp_message
from penstock.agent.admin.support.retirement import peers_in_use
from penstock.agent.journal import STEP_SECONDS, ReadBudget
from penstock.agent.metrics.catalogue import from_log as c
from penstock.agent.model import EngineKey
from penstock.proto.names import number
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import ErrorType, FailureMode, Peer
from penstock.proto.v1.snapshot_pb2 import PeerStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.agent.journal import Reader
    from penstock.agent.metrics import EngineRows, Metric, Row
    from penstock.agent.sources import EngineView
    from penstock.proto.v1.snapshot_pb2 import Deferred, InFlight, Snapshot

PeerKey = tuple[EngineKey, str]

# The metrics that :func:`peer_summaries` reads.
PEER_METRICS = frozenset({c.TRANSFERS, c.TRANSFER_DURATION, c.TRANSFER_FAILURES})
# Log entries searched for the last failure of a peer.
_FAILURES_READ = 2000


@dataclass(slots=True)
class _Account:
    ok: int = 0
    failed: int = 0
    timed: int = 0
    duration_nano: int = 0
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    status: PeerStatus = field(default_factory=PeerStatus)
    engine_id: str = ""
    in_flight: int = 0
    oldest_unix_nano: int = 0
    deferred: int = 0
    oldest_deferred_unix_nano: int = 0
    # Time of its newest entry, by the engine's clock; 0 for none.
    last_unix_nano: int = 0
    in_use: bool = False


def last_failures(reader: Reader) -> dict[PeerKey, int]:
    """Return the time of each peer's last failure among the newest of the log, nanoseconds."""
    found: dict[PeerKey, int] = {}
    allowance = ReadBudget(seconds=STEP_SECONDS)
    rows = reader.scan(kinds=["transfer_failure"], limit=_FAILURES_READ, allowance=allowance)
    for failure in EventScan(reader, rows):
        peer = failure.source.key, failure.event.transfer_failure.peer.address or "unknown"
        found[peer] = max(found.get(peer, 0), failure.event.time_unix_nano)
    return found


def peer_summaries(
    rows: Iterable[EngineRows],
    views: Iterable[EngineView],
    failures: Mapping[PeerKey, int],
    ordered: Mapping[PeerKey, int],
    since_unix_nano: int = 0,
) -> list[admin.PeerSummary]:
    """Return one summary for each engine and peer, ordered by both.

    A peer is retired if its engine does not use it and has no entry for it after *since_unix_nano*.

    Args:
        rows: the counters.
        views: the engines, whose snapshots are up to a second old.
        failures: time of each peer's last failure, nanoseconds.
        ordered: ``QuarantineState`` by acknowledged orders, which are newer than the snapshots.
        since_unix_nano: by the agent's clock.

    """
    accounts: dict[PeerKey, _Account] = {}
    for engine in rows:
        for metric, series in engine.rows.items():
            for row in series:
                _count(accounts, engine.key, metric, row)
    views = list(views)
    ahead = clock_offsets(views)
    for view in views:
        for live in view.sources:
            if live.snapshot is not None:
                _add_present(accounts, view.key, live.snapshot)
    _order_states(accounts, ordered)
    return [
        _summary(key, account, failures.get(key, 0), since_unix_nano + ahead.get(key[0], 0))
        for key, account in sorted(accounts.items(), key=_order)
    ]


def clock_offsets(views: Iterable[EngineView]) -> dict[EngineKey, int]:
    """Return each engine's clock minus the agent's, nanoseconds; 0 where it is not known."""
    ahead: dict[EngineKey, int] = {}
    for view in views:
        for live in view.sources:
            ahead[view.key] = live.clock_offset_nano or ahead.get(view.key, 0)
    return ahead


def _add_present(accounts: dict[PeerKey, _Account], key: EngineKey, snapshot: Snapshot) -> None:
    for address in peers_in_use(snapshot):
        _account(accounts, key, Peer(address=address)).in_use = True
    for status in snapshot.peers:
        # The worker reports the connection, the scheduler the quarantine.
        _account(accounts, key, status.peer).status.MergeFrom(status)
    for item in snapshot.in_flight:
        _fly(_account(accounts, key, item.peer), item)
    for wait in snapshot.deferred:
        if wait.HasField("peer"):
            _wait(_account(accounts, key, wait.peer), wait)


def _order_states(accounts: Mapping[PeerKey, _Account], ordered: Mapping[PeerKey, int]) -> None:
    for place, state in ordered.items():
        account = accounts.get(place)
        if account is not None and account.status.HasField("peer"):
            account.status.quarantine = state  # type: ignore[assignment]


def _order(item: tuple[PeerKey, _Account]) -> PeerKey:
    return item[0]


def _account(accounts: dict[PeerKey, _Account], key: EngineKey, peer: Peer) -> _Account:
    account = accounts.setdefault((key, peer.address or "unknown"), _Account())
    account.engine_id = peer.engine_id or account.engine_id
    return account


def _count(
    accounts: dict[PeerKey, _Account],
    key: EngineKey,
    metric: Metric,
    row: Row,
) -> None:
    if metric not in PEER_METRICS:
        return
    total = row.total
    named = dict(zip(metric.labels, row.labels, strict=True))
    account = accounts.setdefault((key, named["peer"]), _Account())
    account.last_unix_nano = max(account.last_unix_nano, row.touched)
    if metric is c.TRANSFERS:
        if named["result"] == "ok":
            account.ok += total
        else:
            account.failed += total
    elif metric is c.TRANSFER_DURATION:
        account.timed += sum(row.counts)
        account.duration_nano += total
    else:
        account.failures[named["mode"], named["error_type"]] += total


def _fly(account: _Account, item: InFlight) -> None:
    account.in_flight += item.count
    account.oldest_unix_nano = _earlier(account.oldest_unix_nano, item.oldest_start_time_unix_nano)


def _wait(account: _Account, item: Deferred) -> None:
    account.deferred += item.count
    account.oldest_deferred_unix_nano = _earlier(
        account.oldest_deferred_unix_nano, item.oldest_start_time_unix_nano
    )


def _earlier(one: int, other: int) -> int:
    """Return the earlier of two times; 0 means unknown."""
    return min(one, other) if one and other else one or other


def _summary(peer: PeerKey, account: _Account, last_failure: int, since: int) -> admin.PeerSummary:
    key, address = peer
    newest = max(account.last_unix_nano, account.status.last_active_unix_nano)
    # A peer without any entry is listed because its engine reports it.
    active = account.in_use or not newest or newest >= since
    return admin.PeerSummary(
        key=key_message(key),
        peer=Peer(address=address, engine_id=account.engine_id),
        status=account.status if account.status.HasField("peer") else None,
        transfers_ok=clamp_unsigned(account.ok),
        transfers_failed=clamp_unsigned(account.failed),
        mean_duration_seconds=account.duration_nano / account.timed / 1e9 if account.timed else 0.0,
        in_flight=clamp_unsigned(account.in_flight, MAX_UINT32),
        oldest_in_flight=timestamp_message(account.oldest_unix_nano),
        deferred=clamp_unsigned(account.deferred, MAX_UINT32),
        oldest_deferred=timestamp_message(account.oldest_deferred_unix_nano),
        failures=[
            admin.FailureCount(
                mode=_number(FailureMode, mode),
                error_type=_number(ErrorType, error_type),
                count=clamp_unsigned(count),
            )
            for (mode, error_type), count in sorted(account.failures.items())
        ],
        last_failure=timestamp_message(last_failure),
        retired=not active,
    )


def _number(enum: Any, word: str) -> Any:
    """Return the value of a label; 0 for a label of a newer version."""
    try:
        return number(enum, word)
    except ValueError:
        return 0
