"""How a map is drawn, whatever draws it: columns of boxes, and the look of an edge. Pure.

An edge is as wide as it moves bytes, on a logarithmic scale; its state is a colour, a pattern and a word.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.fleet_map.model import ROLES
from penstock.agent.fleet_map.table import group_counts
from penstock.agent.views import text
from penstock.agent.views.peers import condition_colour
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.fleet_map.model import FleetMap, MapEdge, MapNode

# 1 MB/s is one wide, 100 GB/s six.
_UNIT: Final = 1e6
_WIDEST: Final = 8.0
_TITLES: Final = {
    "encoder": "encoders",
    "prefill": "prefills",
    "both": "prefill and decode",
    "decode": "decodes",
    "other": "others",
}


class Look(NamedTuple):
    """How an edge is drawn: *style* of Graphviz, *dashes* of SVG (empty for a line without gaps)."""

    name: str
    colour: str
    style: str
    dashes: str


_OK: Final = Look("ok", "#2e7d32", "solid", "")
_QUIET: Final = Look("quiet", "#6b7280", "dotted", "1 4")
_LOOKS: Final = {
    "red": Look("error", "#b00020", "bold,dashed", "10 4"),
    "yellow": Look("warning", "#b26a00", "dashed", "4 4"),
}


class Box(NamedTuple):
    """A node or a group.

    Attributes:
        name: as edges name it.
        notes: what is said beside the name.
        kind: ``group``, ``away``, ``trouble``, or empty.

    """

    name: str
    notes: tuple[str, ...]
    kind: str

    @property
    def label(self) -> str:
        """All of it in one line."""
        return ", ".join((self.name, *self.notes))


class BoxColumn(NamedTuple):
    """What has one role, from top to bottom."""

    role: str
    title: str
    boxes: tuple[Box, ...]


def columns(found: FleetMap, now: float) -> Iterator[BoxColumn]:
    """Yield the columns that have something, from left to right; *now* in seconds."""
    for role in ROLES:
        boxes = [
            Box(group.name, tuple(group_counts(group)), "group")
            for group in found.groups
            if group.role == role
        ]
        boxes += [
            Box(node.name, tuple(_notes(node, now)), _kind(node)) for node in found.nodes if node.role == role
        ]
        if boxes:
            yield BoxColumn(role, _TITLES[role], tuple(boxes))


def look_of(edge: MapEdge) -> Look:
    """Return the look of an edge's state."""
    colour = condition_colour(edge.condition)
    if colour:
        return _LOOKS[colour]
    return _OK if edge.condition == admin.PEER_CONDITION_OK else _QUIET


def width_of(edge: MapEdge) -> float:
    """Return how wide an edge is, 1 to 8; one of which no bytes are known is as thin as one that moves none."""
    moved = edge.bytes_per_second or 0.0
    return 1.0 if moved <= _UNIT else min(1.0 + math.log10(moved / _UNIT), _WIDEST)


def _kind(node: MapNode) -> str:
    if node.is_engine and not node.connected:
        return "away"
    return "trouble" if node.in_trouble else ""


def _notes(node: MapNode, now: float) -> Iterator[str]:
    if node.pool:
        yield node.pool
    if node.in_trouble:
        yield "in trouble"
    if node.is_engine and not node.connected:
        since = text.ago(node.away_since_unix_nano, now).removesuffix(" ago")
        yield f"away for {since}" if node.away_since_unix_nano else "away"
