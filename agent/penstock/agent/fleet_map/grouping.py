"""A map that people can read: groups of nodes and sums of edges where there are many, and few edges in all. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.fleet_map.model import ROLES, FleetMap, MapEdge, MapGroup, in_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.agent.fleet_map.model import MapNode

MOST_NODES: Final = 12
"""More nodes than these are grouped by role and pool: of twelve, each has its line on a screen."""

MOST_EDGES: Final = 40
"""Edges of a drawn map: more of them hide each other. The worst are kept."""

_Kind = tuple[str, str]


class _Star(NamedTuple):
    """The edges between one node that they are put down to and one group, of one channel and direction."""

    node: str
    group: str
    channel: str
    sends: bool


def grouped(whole: FleetMap, most_nodes: int = MOST_NODES, most_edges: int = MOST_EDGES) -> FleetMap:
    """Return *whole* as it is drawn: grouped if it has more than *most_nodes*, with at most *most_edges*, the worst.

    Of a grouped map the edges are the sums between groups and, beside them, those of nodes in trouble: the sum of such a
    node's edges with each group, or the one edge that is in trouble.
    """
    if len(whole.nodes) <= most_nodes:
        return FleetMap(whole.nodes, whole.edges[:most_edges], left_out=max(len(whole.edges) - most_edges, 0))
    groups = _groups(whole.nodes)
    group_of = {member: group.name for group in groups for member in group.members}
    sums = _between_groups(whole.edges, group_of)
    named = _of_named(whole.edges, group_of)
    # Neither hides the other: each has half of the room for sure.
    room = max(most_edges - len(sums), most_edges // 2)
    shown = [*named[:room], *sums[: most_edges - min(room, len(named))]]
    shown.sort(key=lambda edge: edge.place)
    ends = {end for edge in shown for end in (edge.source, edge.target)}
    return FleetMap(
        in_columns(node for node in whole.nodes if node.name in ends),
        tuple(shown),
        groups,
        len(sums) + len(named) - len(shown),
    )


def _groups(nodes: Iterable[MapNode]) -> tuple[MapGroup, ...]:
    members: defaultdict[_Kind, list[MapNode]] = defaultdict(list)
    names = set()
    for node in nodes:
        members[node.role, node.pool].append(node)
        names.add(node.name)
    found = []
    for role, pool in sorted(members, key=lambda kind: (ROLES.index(kind[0]), kind[1])):
        name = f"{role} · {pool}" if pool else role
        # Nobody names engines so, but they may.
        while name in names:
            name += "*"
        names.add(name)
        some = members[role, pool]
        found.append(
            MapGroup(
                name,
                role,
                pool,
                tuple(node.name for node in some),
                engines=sum(node.is_engine for node in some),
                in_trouble=sum(node.in_trouble for node in some),
                away=sum(node.is_engine and not node.connected for node in some),
                addresses=tuple(address for node in some for address in node.addresses),
            )
        )
    return tuple(found)


def _between_groups(edges: Iterable[MapEdge], group_of: Mapping[str, str]) -> list[MapEdge]:
    found: defaultdict[tuple[str, str, str], list[MapEdge]] = defaultdict(list)
    for edge in edges:
        found[group_of[edge.source], group_of[edge.target], edge.channel].append(edge)
    return sorted((_total(*key, some) for key, some in found.items()), key=lambda edge: edge.place)


def _of_named(edges: Iterable[MapEdge], group_of: Mapping[str, str]) -> list[MapEdge]:
    """Return the edges of nodes in trouble, the worst first."""
    stars: defaultdict[_Star, list[MapEdge]] = defaultdict(list)
    troubled = set()
    for edge in edges:
        for node, other, sends in ((edge.source, edge.target, True), (edge.target, edge.source, False)):
            star = _Star(node, group_of[other], edge.channel, sends)
            stars[star].append(edge)
            if edge.at == node:
                troubled.add(star)
    found = []
    for star in troubled:
        some = stars[star]
        bad = [edge for edge in some if edge.links_in_trouble]
        if len(bad) == 1:
            found += bad
        else:
            ends = (star.node, star.group) if star.sends else (star.group, star.node)
            found.append(_total(*ends, star.channel, some, at=star.node))
    return sorted(set(found), key=lambda edge: edge.place)


def _total(source: str, target: str, channel: str, edges: list[MapEdge], at: str = "") -> MapEdge:
    """Return the sum of some edges: it is as bad as the worst, and has usual speeds as the median one."""
    # They are in their order.
    worst = edges[0]
    alike = [edge.since_unix_nano for edge in edges if edge.condition == worst.condition]
    return MapEdge(
        source,
        target,
        channel,
        worst.condition,
        worst.reason,
        worst.cause,
        min(filter(None, alike), default=0),
        at,
        _sum(edge.bytes_per_second for edge in edges),
        _whole(edge.transfers for edge in edges),
        _whole(edge.failed for edge in edges),
        _median(edge.speed for edge in edges),
        _median(edge.usual_speed for edge in edges),
        links=len(edges),
        links_in_trouble=sum(edge.links_in_trouble for edge in edges),
        engine=worst.engine,
        peer=worst.peer,
    )


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum of what is known; None if nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _whole(values: Iterable[int | None]) -> int | None:
    known = _sum(values)
    return None if known is None else int(known)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
