"""The map as JSON values, for ``-o json`` and for pages. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.agent.fleet_map.model import WINDOW_SECONDS
from penstock.agent.views import text
from penstock.agent.views.json_values import MOST, moment
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from penstock.agent.fleet_map.model import FleetMap, MapEdge, MapGroup, MapNode


def map_document(found: FleetMap) -> dict[str, Any]:
    """Return the map; what is not known is left out, as are moments that there are none of."""
    return {
        "windowSeconds": WINDOW_SECONDS,
        "nodes": [_node(node) for node in found.nodes],
        "groups": [_group(group) for group in found.groups],
        "edges": [_edge(edge) for edge in found.edges],
        "leftOut": found.left_out,
    }


def _node(node: MapNode) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": node.name,
        "role": node.role,
        "pool": node.pool,
        "isEngine": node.is_engine,
        "connected": node.connected,
        "inTrouble": node.in_trouble,
    }
    if node.away_since_unix_nano:
        document["awaySince"] = moment(node.away_since_unix_nano)
    return document


def _group(group: MapGroup) -> dict[str, Any]:
    return {
        "name": group.name,
        "role": group.role,
        "pool": group.pool,
        "members": list(group.members),
        "engines": group.engines,
        "inTrouble": group.in_trouble,
        "away": group.away,
    }


def _edge(edge: MapEdge) -> dict[str, Any]:
    document: dict[str, Any] = {
        "from": edge.source,
        "to": edge.target,
        "channel": edge.channel,
        "condition": text.word(admin.PeerCondition, edge.condition),
        "conditionReason": edge.reason,
        "cause": edge.cause,
        "links": edge.links,
        "linksInTrouble": edge.links_in_trouble,
    }
    optional: dict[str, Any] = {
        "at": edge.at or None,
        "conditionSince": moment(edge.since_unix_nano) if edge.since_unix_nano else None,
        "bytesPerSecond": edge.bytes_per_second,
        "transfers": None if edge.transfers is None else min(edge.transfers, MOST),
        "failed": None if edge.failed is None else min(edge.failed, MOST),
        "transferBytesPerSecond": edge.speed,
        "usualBytesPerSecond": edge.usual_speed,
    }
    return document | {name: value for name, value in optional.items() if value is not None}
