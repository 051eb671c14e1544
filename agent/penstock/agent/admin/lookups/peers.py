"""The answer of ``ListPeers``: which peers, in which order, with a row for those that are asked for only.

One summary for each engine and peer, from the counters and the snapshots.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.agent.admin.lookups.known_peers import PEER_METRICS, UNNAMED, Present, judged_peers, known_peers
from penstock.agent.admin.lookups.messages import MAX_UINT32, clamp_unsigned, key_message, timestamp_message
from penstock.agent.admin.lookups.peer_conditions import PeerOrder
from penstock.agent.aio import ThreadYield
from penstock.agent.metrics import WAYS, TrafficSum
from penstock.agent.metrics.catalogue import from_log as c
from penstock.proto.names import number
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import Channel, Direction, ErrorType, FailureMode, Peer
from penstock.proto.v1.snapshot_pb2 import PeerStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from penstock.agent.admin.lookups.known_peers import PeerKey, PeerSources
    from penstock.agent.metrics import DurationWindow, DurationWindows, Metric, PeerWindows, Row, Way
    from penstock.agent.model import EngineKey
    from penstock.proto.v1.snapshot_pb2 import Snapshot

_NOTHING = Present()
_NOTHING_MOVED = TrafficSum()


@dataclass(slots=True)
class _Account:
    ok: int = 0
    failed: int = 0
    timed: int = 0
    duration_nano: int = 0
    unseen_nano: int = 0
    # Channels and directions in which transfers have ended.
    ways: set[Way] = field(default_factory=set)
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    # By the engine's clock; 0 for none.
    last_failure_unix_nano: int = 0
    status: PeerStatus = field(default_factory=PeerStatus)
    engine_id: str = ""


def peer_summaries(
    sources: PeerSources,
    present: Mapping[PeerKey, Present],
    places: Iterable[PeerKey],
    *,
    between: Callable[[], None] = lambda: None,
) -> dict[PeerKey, admin.PeerSummary]:
    """Return the summary of each of *places*, with its windows and without its condition.

    *between* is called after each of them.
    """
    accounts = {place: _Account() for place in places}
    wanted: dict[EngineKey, set[str]] = {}
    for key, address in accounts:
        wanted.setdefault(key, set()).add(address)
    for key, names in wanted.items():
        between()
        for metric, series in sources.aggregator.rows_of_peers(key, PEER_METRICS, names).items():
            for row in series:
                _count(accounts, key, metric, row)
        for snapshot in sources.snapshots.get(key, ()):
            _add_statuses(accounts, key, names, snapshot)
    found = {}
    for place, account in accounts.items():
        between()
        if place in sources.ordered and account.status.HasField("peer"):
            account.status.quarantine = sources.ordered[place]  # type: ignore[assignment]
        found[place] = summary = _summary(place, account, present.get(place, _NOTHING))
        windows = sources.aggregator.peer_windows(*place, sources.now_of(place[0]))
        if windows is not None:
            _add_windows(summary, windows)
        _add_traffic(summary, account.ways, windows)
    return found


def _add_statuses(
    accounts: dict[PeerKey, _Account], key: EngineKey, names: Container[str], snapshot: Snapshot
) -> None:
    for status in snapshot.peers:
        account = _named(accounts, key, names, status.peer)
        if account is not None:
            # The worker reports the connection, the scheduler the quarantine.
            account.status.MergeFrom(status)
    for flying in snapshot.in_flight:
        _named(accounts, key, names, flying.peer)
    for waiting in snapshot.deferred:
        if waiting.HasField("peer"):
            _named(accounts, key, names, waiting.peer)


def _named(
    accounts: dict[PeerKey, _Account], key: EngineKey, names: Container[str], peer: Peer
) -> _Account | None:
    """Return the account of a peer, with its engine's id noted; None if it is not among *names*."""
    address = peer.address or UNNAMED
    if address not in names:
        return None
    account = accounts[key, address]
    account.engine_id = peer.engine_id or account.engine_id
    return account


def _count(accounts: dict[PeerKey, _Account], key: EngineKey, metric: Metric, row: Row) -> None:
    total = row.total
    named = dict(zip(metric.labels, row.labels, strict=True))
    account = accounts[key, named["peer"]]
    if metric is c.TRANSFERS:
        account.ways.add((_number(Channel, named["channel"]), _number(Direction, named["direction"])))
        if named["result"] == "ok":
            account.ok += total
        else:
            account.failed += total
    elif metric is c.TRANSFER_DURATION:
        account.timed += sum(row.counts)
        account.duration_nano += total
    elif metric is c.TRANSFER_END_UNCERTAINTY:
        account.unseen_nano += total
    else:
        account.failures[named["mode"], named["error_type"]] += total
        account.last_failure_unix_nano = max(account.last_failure_unix_nano, row.touched)


def _summary(peer: PeerKey, account: _Account, present: Present) -> admin.PeerSummary:
    key, address = peer
    return admin.PeerSummary(
        key=key_message(key),
        peer=Peer(address=address, engine_id=account.engine_id),
        status=account.status if account.status.HasField("peer") else None,
        transfers_ok=clamp_unsigned(account.ok),
        transfers_failed=clamp_unsigned(account.failed),
        mean_duration_seconds=account.duration_nano / account.timed / 1e9 if account.timed else 0.0,
        mean_duration_at_least_seconds=(account.duration_nano - account.unseen_nano) / account.timed / 1e9
        if account.timed
        else None,
        in_flight=clamp_unsigned(present.in_flight, MAX_UINT32),
        oldest_in_flight=timestamp_message(present.oldest_in_flight),
        deferred=clamp_unsigned(present.deferred, MAX_UINT32),
        oldest_deferred=timestamp_message(present.oldest_deferred),
        failures=[
            admin.FailureCount(
                mode=_number(FailureMode, mode),
                error_type=_number(ErrorType, error_type),
                count=clamp_unsigned(count),
            )
            for (mode, error_type), count in sorted(account.failures.items())
        ],
        last_failure=timestamp_message(account.last_failure_unix_nano),
    )


def _add_windows(summary: admin.PeerSummary, windows: PeerWindows) -> None:
    summary.transfers.CopyFrom(_message(windows.transfers))
    summary.waits.CopyFrom(_message(windows.waits))
    if windows.least.last_15_minutes.count:
        summary.transfers_at_least.CopyFrom(_message(windows.least))
    summary.failures_last_minute = windows.failures_last_minute
    summary.failures_last_15_minutes = windows.failures_last_15_minutes


def _add_traffic(summary: admin.PeerSummary, ways: set[Way], windows: PeerWindows | None) -> None:
    known = {} if windows is None else windows.traffic
    for channel, direction in sorted(ways | known.keys()):
        traffic = summary.traffic.add(channel=channel, direction=direction)
        if windows is None or (channel, direction) not in WAYS:
            continue
        moved = known.get((channel, direction), _NOTHING_MOVED)
        traffic.last_15_minutes.transfers_ok = moved.ok
        traffic.last_15_minutes.transfers_failed = moved.failed
        if moved.sized or not moved.ok:
            traffic.last_15_minutes.bytes = clamp_unsigned(moved.bytes)


def _message(windows: DurationWindows) -> admin.PeerWindows:
    return admin.PeerWindows(
        last_minute=_window(windows.last_minute),
        last_15_minutes=_window(windows.last_15_minutes),
        hour_before=_window(windows.hour_before),
    )


def _window(window: DurationWindow) -> admin.DurationWindow:
    return admin.DurationWindow(count=window.count, p50_seconds=window.p50, p99_seconds=window.p99)


def _number(enum: Any, word: str) -> Any:
    """Return the value of a label; 0 for a label of a newer version."""
    try:
        return number(enum, word)
    except ValueError:
        return 0


def listed_peers(
    sources: PeerSources,
    request: admin.ListPeersRequest,
    since_unix_nano: int,
    *,
    only_suspected: bool = False,
) -> admin.ListPeersResponse:
    """Return the peers that *request* asks for, what is wrong now first. On a thread of its own.

    A peer is retired if its engine does not use it and has no entry for it after *since_unix_nano*, by the agent's clock.
    One that only its engine reports, without any entry, is not. With *only_suspected* there are no rows of peers without
    durations, failures, waits and quarantine; they count in the totals.
    """
    let_go = ThreadYield()
    known = known_peers(sources, frozenset(request.peers) if request.peers else None, between=let_go)
    retired: dict[EngineKey, frozenset[str]] = {}
    listed: dict[EngineKey, AbstractSet[str]] = {}
    for key, names in known.newest.items():
        let_go()
        since = since_unix_nano + sources.ahead.get(key, 0)
        retired[key] = frozenset(name for name, newest in names.items() if 0 < newest < since)
        states: dict[str, AbstractSet[str]] = {"all": names.keys(), "retired": retired[key]}
        listed[key] = states.get(request.state, names.keys() - retired[key])
    engines = sources.engines()
    judged = judged_peers(sources.diagnosis, sources.gone(), engines)
    order = PeerOrder(sources, known, listed, judged, between=let_go)
    if only_suspected:
        places = order.suspected()
    elif request.most_peers and request.most_engines:
        places = order.table(request.most_peers, request.most_engines)
    else:
        places = order.first(request.limit)
    summaries = peer_summaries(sources, known.present, places, between=let_go)
    for place, summary in summaries.items():
        let_go()
        key, address = place
        condition = order.condition(place)
        summary.condition, summary.condition_reason = condition.condition, condition.reason
        summary.cause = condition.cause
        since = condition.since and clamp_unsigned(condition.since - sources.ahead.get(key, 0))
        if since:
            summary.condition_since.FromNanoseconds(since)
        if address in engines:
            summary.engine.CopyFrom(key_message(engines[address]))
        summary.retired = address in retired[key]
    left_out = sum(map(len, known.newest.values())) - order.totals.rows
    return admin.ListPeersResponse(
        peers=summaries.values(),
        left_out=left_out,
        total=order.totals.rows,
        total_peers=order.totals.addresses,
    )
