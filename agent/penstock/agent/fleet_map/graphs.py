"""The map as text for Graphviz and for Mermaid. Pure.

An edge is as wide as it moves bytes, on a logarithmic scale; its state is a colour, a pattern and a word. Names are of
engines and peers, which choose them: they stand in quotes, with whatever either language reads in quotes escaped.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.fleet_map.model import ROLES
from penstock.agent.fleet_map.table import edge_words, group_words
from penstock.agent.views import text
from penstock.agent.views.peers import condition_colour
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.fleet_map.model import FleetMap, MapEdge, MapNode

_LONGEST: Final = 100
# 1 MB/s is one wide, 100 GB/s six.
_UNIT: Final = 1e6
_WIDEST: Final = 8.0
# What Mermaid may read as more than text: it takes each as the number of the character.
_MERMAID: Final = re.compile(r"[^\w .,:/·-]", re.ASCII)
_TITLES: Final = {
    "encoder": "encoders",
    "prefill": "prefills",
    "both": "prefill and decode",
    "decode": "decodes",
    "other": "others",
}


class _Look(NamedTuple):
    """How an edge is drawn: *style* of Graphviz, *dashes* of SVG (empty for a line without gaps)."""

    colour: str
    style: str
    dashes: str


_OK: Final = _Look("#2e7d32", "solid", "")
_QUIET: Final = _Look("#6b7280", "dotted", "1 4")
_LOOKS: Final = {"red": _Look("#b00020", "bold,dashed", "10 4"), "yellow": _Look("#b26a00", "dashed", "4 4")}


def dot_lines(found: FleetMap, now: float) -> Iterator[str]:
    """Yield a ``digraph`` for Graphviz; *now* in seconds."""
    yield "digraph penstock {"
    yield '  graph [rankdir="LR", newrank="true", fontname="sans-serif"];'
    yield '  node [shape="box", fontname="sans-serif"];'
    yield '  edge [fontname="sans-serif", fontsize="10"];'
    ids = _ids(found)
    for role, lines in _columns(found, now):
        yield f"  subgraph cluster_{role} {{"
        yield f'    label={_quoted(_TITLES[role])}; style="dashed";'
        for name, label, kind in lines:
            yield f"    {ids[name]} [label={_quoted(label)}{_DOT_KINDS[kind]}];"
        yield "  }"
    for edge in found.edges:
        look, label = _look(edge), _quoted(*edge_words(edge, now))
        yield (
            f'  {ids[edge.source]} -> {ids[edge.target]} [label={label}, penwidth="{_width(edge):.1f}", '
            f'color="{look.colour}", fontcolor="{look.colour}", style="{look.style}"];'
        )
    yield "}"


def mermaid_lines(found: FleetMap, now: float) -> Iterator[str]:
    """Yield a flowchart for Mermaid; *now* in seconds."""
    yield "flowchart LR"
    ids = _ids(found)
    for role, lines in _columns(found, now):
        yield f'  subgraph {role}_column ["{_escaped(_TITLES[role])}"]'
        for name, label, kind in lines:
            before, after = _MERMAID_KINDS[kind]
            yield f"    {ids[name]}{before}{_escaped(label)}{after}"
        yield "  end"
    for edge in found.edges:
        label = _escaped(", ".join(edge_words(edge, now)))
        yield f'  {ids[edge.source]} -->|"{label}"| {ids[edge.target]}'
    for number, edge in enumerate(found.edges):
        look = _look(edge)
        dashes = f",stroke-dasharray:{look.dashes}" if look.dashes else ""
        yield f"  linkStyle {number} stroke:{look.colour},stroke-width:{_width(edge):.1f}px{dashes},color:{look.colour}"
    yield "  classDef away stroke-dasharray:4 4"
    yield "  classDef trouble stroke-width:3px"


_DOT_KINDS: Final = {
    "": "",
    "group": ', peripheries="2"',
    "away": ', style="dashed"',
    "trouble": ', style="bold"',
}
_MERMAID_KINDS: Final = {
    "": ('["', '"]'),
    "group": ('[["', '"]]'),
    "away": ('["', '"]:::away'),
    "trouble": ('["', '"]:::trouble'),
}


def _ids(found: FleetMap) -> dict[str, str]:
    """Return the names of nodes and groups in the text."""
    names = [*(group.name for group in found.groups), *(node.name for node in found.nodes)]
    return {name: f"n{number}" for number, name in enumerate(names)}


def _columns(found: FleetMap, now: float) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Yield the columns that have something, with name, label and kind of each."""
    for role in ROLES:
        lines = [(group.name, group_words(group), "group") for group in found.groups if group.role == role]
        lines += [
            (node.name, _node_words(node, now), _kind(node)) for node in found.nodes if node.role == role
        ]
        if lines:
            yield role, lines


def _kind(node: MapNode) -> str:
    if node.is_engine and not node.connected:
        return "away"
    return "trouble" if node.in_trouble else ""


def _node_words(node: MapNode, now: float) -> str:
    words = [node.name, node.pool] if node.pool else [node.name]
    if node.in_trouble:
        words.append("in trouble")
    if node.is_engine and not node.connected:
        since = text.ago(node.away_since_unix_nano, now).removesuffix(" ago")
        words.append(f"away for {since}" if node.away_since_unix_nano else "away")
    return ", ".join(words)


def _look(edge: MapEdge) -> _Look:
    colour = condition_colour(edge.condition)
    if colour:
        return _LOOKS[colour]
    return _OK if edge.condition == admin.PEER_CONDITION_OK else _QUIET


def _width(edge: MapEdge) -> float:
    moved = edge.bytes_per_second or 0.0
    return 1.0 if moved <= _UNIT else min(1.0 + math.log10(moved / _UNIT), _WIDEST)


def _quoted(*lines: str) -> str:
    """Return a quoted string of Graphviz, which reads escapes and entities in labels."""
    shown = (text.one_line(text.printable(line), _LONGEST) for line in lines)
    escaped = (line.replace("&", "&amp;").replace("\\", r"\\").replace('"', r"\"") for line in shown)
    return '"' + r"\n".join(escaped) + '"'


def _escaped(label: str) -> str:
    """Return what stands between Mermaid's quotes."""
    line = text.one_line(text.printable(label), _LONGEST)
    return _MERMAID.sub(lambda found: f"#{ord(found[0])};", line)
