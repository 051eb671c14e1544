"""The fleet map as the page draws it: columns of boxes, and the edges between them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.agent.fleet_map import columns, edge_rows, edge_words, left_out_words, look_of, width_of
from penstock.agent.page.wire import MAX_MESSAGE_BYTES, encode, plain

if TYPE_CHECKING:
    from penstock.agent.fleet_map import Box, FleetMap, MapEdge

_CELLS: Final = 8
"""Columns of the table behind the picture: those of ``agentctl get map`` that are not wide."""


@dataclass(frozen=True, slots=True)
class MapBox:
    """A node or a group.

    Attributes:
        kind: ``group``, ``away``, ``trouble`` or empty.
        engines: keys of the engines that it stands for.
        peers: addresses that it stands for.

    """

    name: str
    notes: tuple[str, ...]
    kind: str
    engines: tuple[str, ...]
    peers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MapColumn:
    """What has one role."""

    title: str
    boxes: tuple[MapBox, ...]


@dataclass(frozen=True, slots=True)
class DrawnEdge:
    """State that moves from one box to another.

    Attributes:
        source: the name of a box, as *target*.
        state: ``ok``, ``quiet``, ``warning`` or ``error``: how bad its condition is.
        dashes: the pattern of its line, as SVG has it; empty for none.
        width: 1 to 8.
        words: the parts of its label.
        cells: its row of the table.
        engine: the engine that says its condition; empty for a sum.
        peer: the address that it is about; empty for a sum.

    """

    source: str
    target: str
    state: str
    dashes: str
    width: float
    words: tuple[str, ...]
    cells: tuple[str, ...]
    engine: str
    peer: str


@dataclass(frozen=True, slots=True)
class ShownMap:
    """The map.

    Attributes:
        now: when its answers were asked for, milliseconds since 1970.
        headers: of the table.
        edges: the worst first.
        sentence: what is left out; empty for nothing.

    """

    now: float
    columns: tuple[MapColumn, ...]
    headers: tuple[str, ...]
    edges: tuple[DrawnEdge, ...]
    sentence: str = ""


def shown_map(found: FleetMap, now: float) -> ShownMap:
    """Return a map as it is sent; *now* in seconds."""
    stands = _stands_for(found)
    table = edge_rows(found, now)
    return ShownMap(
        round(now * 1e3),
        tuple(
            MapColumn(column.title, tuple(_box(box, *stands[box.name]) for box in column.boxes))
            for column in columns(found, now)
        ),
        table.headers[:_CELLS],
        tuple(_edge(edge, row, now) for edge, row in zip(found.edges, table.rows, strict=True)),
        left_out_words(found),
    )


def encoded_map(shown: ShownMap, most: int = MAX_MESSAGE_BYTES) -> bytes:
    """Return a map as JSON of *most* bytes at most: first without what boxes stand for, then without edges and boxes."""
    if len(encoded := encode(shown)) <= most:
        return encoded
    shown = replace(
        shown,
        columns=tuple(
            replace(column, boxes=tuple(replace(box, engines=(), peers=()) for box in column.boxes))
            for column in shown.columns
        ),
        sentence="a part is left out; 'agentctl get map' shows all",
    )
    while len(encoded := encode(shown)) > most and (shown.edges or shown.columns):
        shown = replace(
            shown,
            edges=shown.edges[: len(shown.edges) // 2],
            columns=shown.columns
            if shown.edges
            else tuple(
                replace(column, boxes=column.boxes[: len(column.boxes) // 2]) for column in shown.columns
            ),
        )
    return encoded


def _stands_for(found: FleetMap) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return engines and addresses of each node and group by its name."""
    nodes = {
        node.name: ((node.name,) if node.is_engine else (), node.addresses or (node.name,))
        for node in found.nodes
    }
    return {group.name: (group.members, group.addresses) for group in found.groups} | nodes


def _box(box: Box, engines: tuple[str, ...], peers: tuple[str, ...]) -> MapBox:
    return MapBox(
        plain(box.name),
        tuple(map(plain, box.notes)),
        box.kind,
        tuple(map(plain, engines)),
        tuple(map(plain, peers)),
    )


def _edge(edge: MapEdge, row: tuple[str, ...], now: float) -> DrawnEdge:
    look, alone = look_of(edge), edge.links == 1
    return DrawnEdge(
        plain(edge.source),
        plain(edge.target),
        look.name,
        look.dashes,
        round(width_of(edge), 1),
        tuple(map(plain, edge_words(edge, now))),
        tuple(map(plain, row[:_CELLS])),
        plain(edge.engine) if alone else "",
        plain(edge.peer) if alone else "",
    )
