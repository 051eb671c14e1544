"""The map as text for Graphviz and for Mermaid. Pure.

Names are of engines and peers, which choose them: they stand in quotes, with whatever either language reads in quotes escaped.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from penstock.agent.fleet_map.drawing import columns, look_of, width_of
from penstock.agent.fleet_map.table import edge_words
from penstock.agent.views import text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.fleet_map.model import FleetMap

_LONGEST: Final = 100
# What Mermaid may read as more than text: it takes each as the number of the character.
_MERMAID: Final = re.compile(r"[^\w .,:/·-]", re.ASCII)


def dot_lines(found: FleetMap, now: float) -> Iterator[str]:
    """Yield a ``digraph`` for Graphviz; *now* in seconds."""
    yield "digraph penstock {"
    yield '  graph [rankdir="LR", newrank="true", fontname="sans-serif"];'
    yield '  node [shape="box", fontname="sans-serif"];'
    yield '  edge [fontname="sans-serif", fontsize="10"];'
    ids = _ids(found)
    for column in columns(found, now):
        yield f"  subgraph cluster_{column.role} {{"
        yield f'    label={_quoted(column.title)}; style="dashed";'
        for box in column.boxes:
            yield f"    {ids[box.name]} [label={_quoted(box.label)}{_DOT_KINDS[box.kind]}];"
        yield "  }"
    for edge in found.edges:
        look, label = look_of(edge), _quoted(*edge_words(edge, now))
        yield (
            f'  {ids[edge.source]} -> {ids[edge.target]} [label={label}, penwidth="{width_of(edge):.1f}", '
            f'color="{look.colour}", fontcolor="{look.colour}", style="{look.style}"];'
        )
    yield "}"


def mermaid_lines(found: FleetMap, now: float) -> Iterator[str]:
    """Yield a flowchart for Mermaid; *now* in seconds."""
    yield "flowchart LR"
    ids = _ids(found)
    for column in columns(found, now):
        yield f'  subgraph {column.role}_column ["{_escaped(column.title)}"]'
        for box in column.boxes:
            before, after = _MERMAID_KINDS[box.kind]
            yield f"    {ids[box.name]}{before}{_escaped(box.label)}{after}"
        yield "  end"
    for edge in found.edges:
        label = _escaped(", ".join(edge_words(edge, now)))
        yield f'  {ids[edge.source]} -->|"{label}"| {ids[edge.target]}'
    for number, edge in enumerate(found.edges):
        look = look_of(edge)
        dashes = f",stroke-dasharray:{look.dashes}" if look.dashes else ""
        yield f"  linkStyle {number} stroke:{look.colour},stroke-width:{width_of(edge):.1f}px{dashes},color:{look.colour}"
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


def _quoted(*lines: str) -> str:
    """Return a quoted string of Graphviz, which reads escapes and entities in labels."""
    shown = (text.one_line(text.printable(line), _LONGEST) for line in lines)
    escaped = (line.replace("&", "&amp;").replace("\\", r"\\").replace('"', r"\"") for line in shown)
    return '"' + r"\n".join(escaped) + '"'


def _escaped(label: str) -> str:
    """Return what stands between Mermaid's quotes."""
    line = text.one_line(text.printable(label), _LONGEST)
    return _MERMAID.sub(lambda found: f"#{ord(found[0])};", line)
