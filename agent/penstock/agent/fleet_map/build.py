"""Makes the map of what ``ListEngines``, ``ListPeers`` and ``ListPairs`` answer. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.badness import badness
from penstock.agent.fleet_map.model import WINDOW_SECONDS, FleetMap, MapEdge, MapNode, in_columns
from penstock.agent.pairs import POOL_LABEL
from penstock.agent.views import text
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

_ROLES: Final = {
    common.ROLE_ENCODER: "encoder",
    common.ROLE_PREFILL: "prefill",
    common.ROLE_DECODE: "decode",
    common.ROLE_BOTH: "both",
}
_OTHER: Final = "other"
# State flows from the lower to the higher where nothing tells.
_STAGES: Final = {"encoder": 0, "prefill": 1, "both": 2, _OTHER: 2, "decode": 3}
_UNNAMED: Final = "unknown"
# Peers of EPLB: weights between the ranks of one engine are no state of requests.
_RANK: Final = "rank:"

_SpeedKey = tuple[str, str, int]
_EdgeKey = tuple[str, str, str]


class _Moved(NamedTuple):
    """What one row says of one channel and direction; None for not known."""

    channel: int
    receives: bool
    bytes: int | None = None
    transfers: int | None = None
    failed: int | None = None


@dataclass(slots=True)
class _Report:
    """What one end says of an edge, over all addresses of the other end; None for not known."""

    bytes: int | None = None
    transfers: int | None = None
    failed: int | None = None

    def add(self, moved: _Moved) -> None:
        self.bytes = _sum(self.bytes, moved.bytes)
        self.transfers = _sum(self.transfers, moved.transfers)
        self.failed = _sum(self.failed, moved.failed)


@dataclass(slots=True)
class _Link:
    """An edge that is being put together."""

    worst: admin.PeerSummary
    about: str
    reports: dict[str, _Report] = field(default_factory=dict)
    speed: admin.PairSpeed | None = None


def whole_map(
    engines: Iterable[admin.Engine],
    peers: Iterable[admin.PeerSummary],
    pairs: Iterable[admin.PairEngine] = (),
    *,
    only: Collection[str] = (),
    alone: bool = True,
    between: Callable[[], None] = lambda: None,
) -> FleetMap:
    """Return the whole map, without groups and bounds.

    Args:
        engines: all that are known, so that peers have their roles.
        peers: the rows that become edges.
        pairs: engines with the speeds of their transfers; without them no speed is known.
        only: names of engines and addresses: edges that one of them is an end of; empty for all.
        alone: whether engines without an edge are on it.
        between: called now and then, so that a thread lets others run.

    """
    nodes = {node.name: node for node in map(_engine_node, engines)}
    speeds = _speeds(pairs)
    links: dict[_EdgeKey, _Link] = {}
    wanted = set(only)
    addresses: defaultdict[str, set[str]] = defaultdict(set)
    for row in peers:
        _add_row(links, nodes, row, speeds)
        addresses[_peer_node(row)].add(row.peer.address)
        if row.peer.address in wanted:
            wanted.add(_peer_node(row))
        between()
    found = [_edge(key, link) for key, link in links.items() if not only or not wanted.isdisjoint(key[:2])]
    about = {key: link.about for key, link in links.items()}
    edges = sorted(_put_down(found, about), key=lambda edge: edge.place)
    trouble = {edge.at for edge in edges if edge.at}
    ends = {end for edge in edges for end in (edge.source, edge.target)}
    kept = ends | (wanted if only else nodes.keys() if alone else set())
    return FleetMap(
        in_columns(
            replace(node, in_trouble=name in trouble, addresses=tuple(sorted(addresses[name])))
            for name, node in nodes.items()
            if name in kept
        ),
        tuple(edges),
    )


def _engine_node(item: admin.Engine) -> MapNode:
    return MapNode(
        text.engine(item.key),
        # The facts learn it from the requests where vLLM's own setting leaves it open.
        _ROLES.get(item.facts.role or item.role, _OTHER),
        item.labels.get(POOL_LABEL, ""),
        is_engine=True,
        connected=item.connected,
        away_since_unix_nano=0 if item.connected else max(item.last_seen.ToNanoseconds(), 0),
    )


def _peer_node(row: admin.PeerSummary) -> str:
    return text.engine(row.engine) if row.HasField("engine") else row.peer.address or _UNNAMED


def _add_row(
    links: dict[_EdgeKey, _Link],
    nodes: dict[str, MapNode],
    row: admin.PeerSummary,
    speeds: Mapping[_SpeedKey, admin.PairSpeed],
) -> None:
    if row.peer.address.startswith(_RANK):
        return
    own, peer = text.engine(row.key), _peer_node(row)
    ends = [
        nodes.get(name) or MapNode(name, _OTHER, is_engine=is_engine)
        for name, is_engine in ((own, True), (peer, row.HasField("engine")))
    ]
    for moved in _moved(row, *(end.role for end in ends)):
        nodes.update((end.name, end) for end in ends)
        channel = text.word(common.Channel, moved.channel)
        key = (peer, own, channel) if moved.receives else (own, peer, channel)
        link = links.get(key)
        if link is None:
            link = links[key] = _Link(row, peer)
        elif _worseness(row) > _worseness(link.worst):
            link.worst, link.about = row, peer
        link.reports.setdefault(own, _Report()).add(moved)
        link.speed = _slower(link.speed, speeds.get((own, row.peer.address, moved.channel)))


def _worseness(row: admin.PeerSummary) -> tuple[int, str, str, str]:
    """Return what tells the worst row, for any order of the rows."""
    return badness(row.condition), row.condition_reason, text.engine(row.key), row.peer.address


def _moved(row: admin.PeerSummary, own_role: str, peer_role: str) -> Iterator[_Moved]:
    """Yield what moved by channel and direction; what may move, where nothing has or an older agent does not tell."""
    ways = [way for way in row.traffic if way.channel != common.CHANNEL_EPLB]
    # Failures are not told by direction: of one way they are its own.
    attempts = row.failures_last_15_minutes if row.HasField("failures_last_15_minutes") else None
    if not ways:
        if row.traffic:
            return
        never = not row.transfers_ok and not row.transfers_failed
        is_encoder = "encoder" in {own_role, peer_role}
        yield _Moved(
            common.CHANNEL_EC if is_encoder else common.CHANNEL_KV,
            _STAGES[own_role] >= _STAGES[peer_role],
            0 if never else None,
            attempts if never else None,
            attempts if never else None,
        )
    for way in ways:
        receives = way.direction != common.DIRECTION_SEND
        if not way.HasField("last_15_minutes"):
            yield _Moved(way.channel, receives)
            continue
        window = way.last_15_minutes
        failed = max(window.transfers_failed, attempts or 0 if len(ways) == 1 else 0)
        size = window.bytes if window.HasField("bytes") else None
        yield _Moved(way.channel, receives, size, window.transfers_ok + failed, failed)


def _speeds(engines: Iterable[admin.PairEngine]) -> dict[_SpeedKey, admin.PairSpeed]:
    """Return the speeds by engine, address and channel: of the ranks the one that is slowest against its usual."""
    found: dict[_SpeedKey, admin.PairSpeed] = {}
    for engine in engines:
        name = text.engine(engine.key)
        for peer in engine.peers:
            for speed in peer.speeds:
                key = name, peer.status.peer.address, int(speed.channel)
                slower = _slower(found.get(key), speed)
                if slower is not None:
                    found[key] = slower
    return found


def _slower(one: admin.PairSpeed | None, other: admin.PairSpeed | None) -> admin.PairSpeed | None:
    if one is None or other is None:
        return one or other
    return min(one, other, key=_against_usual)


def _against_usual(speed: admin.PairSpeed) -> tuple[float, float, float]:
    ratio = speed.usual_ratio if speed.HasField("usual_ratio") else 1.0
    return ratio, speed.bytes_per_second, speed.usual_bytes_per_second


def _edge(key: _EdgeKey, link: _Link) -> MapEdge:
    """Return the edge; of both ends the one counts that has seen more, as both count the same transfers."""
    row = link.worst
    report = max(link.reports.values(), key=lambda each: each.transfers or -1)
    size = report.bytes
    bad = bool(badness(row.condition))
    return MapEdge(
        *key,
        row.condition,
        row.condition_reason,
        row.cause,
        max(row.condition_since.ToNanoseconds(), 0) if bad else 0,
        bytes_per_second=None if size is None else size / WINDOW_SECONDS,
        transfers=report.transfers,
        failed=report.failed,
        speed=_known(link.speed.bytes_per_second) if link.speed and link.speed.count else None,
        usual_speed=_known(link.speed.usual_bytes_per_second)
        if link.speed and link.speed.usual_count
        else None,
        links_in_trouble=int(bad),
        engine=text.engine(row.key),
        peer=row.peer.address,
    )


def _put_down(edges: Collection[MapEdge], about: Mapping[_EdgeKey, str]) -> Iterator[MapEdge]:
    """Yield the edges, those in trouble with the end that they are put down to."""
    bad: Counter[str] = Counter()
    for edge in edges:
        if edge.links_in_trouble:
            bad.update({edge.source, edge.target})
    for edge in edges:
        if not edge.links_in_trouble:
            yield edge
            continue
        more = bad[edge.source] - bad[edge.target]
        named = about[edge.source, edge.target, edge.channel]
        yield replace(edge, at=edge.source if more > 0 else edge.target if more < 0 else named)


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other


def _known(speed: float) -> float | None:
    return speed if math.isfinite(speed) and speed >= 0 else None
