"""Graphviz and Mermaid: whatever engines and peers are called, the text has the nodes and edges of the map."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from penstock.agent.fleet_map.graphs import dot_lines, mermaid_lines
from penstock.agent.fleet_map.model import FleetMap, MapEdge, MapGroup, MapNode
from penstock.agent.views.text import one_line, printable
from penstock.proto.v1 import admin_pb2 as admin

from tests.support.agent.metric_logs import UNTIMED

_OK, _SLOW, _LOST = admin.PEER_CONDITION_OK, admin.PEER_CONDITION_SLOW, admin.PEER_CONDITION_LOST
_NOW = 1_000.0
# A statement of Graphviz: words, quoted strings with backslash escapes, and signs.
_TOKEN = re.compile(r'\s*(?:(?P<word>[A-Za-z_]\w*)|"(?P<text>(?:[^"\\\n]|\\.)*)"|(?P<sign>->|[{}\[\];=,]))')
_HOSTILE = (
    'a"b', "a\nb", "a]b[", "a --> b", "%% x", "%%{init: {}}%%", "<b>", "&lt;", "end", "\\", 'x\\"', "\\N", "a;b", "#quot;",
    "`x`", "ü·☃", "\u202e", "\x1b[2J", "", "}", 'n0["x"]', "|", "click n0 x", "---", "/* */", "//", "<!--",
)  # fmt: skip
_NAMES = st.one_of(st.sampled_from(_HOSTILE), st.text(st.characters(codec="utf-8"), max_size=12))
_MAPS = st.lists(_NAMES, min_size=2, max_size=6, unique=True).flatmap(
    lambda names: st.lists(
        st.tuples(st.sampled_from(names), st.sampled_from(names), st.sampled_from([_OK, _SLOW, _LOST, 0])),
        max_size=6,
    ).map(
        lambda edges: FleetMap(
            tuple(MapNode(name, "prefill", pool) for name, pool in zip(names, names[::-1], strict=True)),
            tuple(MapEdge(one, other, "kv", bad, bytes_per_second=1e9) for one, other, bad in edges),
        )
    )
)


def _tokens(dot: str) -> list[tuple[str, str]]:
    """Read a text of Graphviz's language whole: nothing is left over."""
    found, at = [], 0
    while at < len(dot.rstrip()):
        match = _TOKEN.match(dot, at)
        assert match, dot[at : at + 60]
        found.append((str(match.lastgroup), match[str(match.lastgroup)]))
        at = match.end()
    return found


def _label(quoted: str) -> str:
    """Return what Graphviz shows: it reads escapes, then entities."""
    plain = re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], quoted)
    return html.unescape(plain)


def _shown(node: MapNode) -> str:
    words = f"{node.name}, {node.pool}" if node.pool else node.name
    return one_line(printable(words), 100)


@UNTIMED
@given(_MAPS)
@example(FleetMap(tuple(MapNode(name, "prefill") for name in _HOSTILE), ()))
def test_graphviz_reads_what_is_on_the_map(found: FleetMap) -> None:
    """Balanced, with a node for each node and an edge for each edge, and their names as labels."""
    tokens = _tokens("\n".join(dot_lines(found, _NOW)))
    assert tokens[:3] == [("word", "digraph"), ("word", "penstock"), ("sign", "{")]
    depth = 0
    for kind, value in tokens:
        depth += (value in "{[") - (value in "}]") if kind == "sign" else 0
        assert depth >= 0
    assert depth == 0
    assert tokens.count(("sign", "->")) == len(found.edges)
    labels = [
        _label(tokens[place + 4][1])
        for place, (kind, value) in enumerate(tokens[:-4])
        if kind == "word" and re.fullmatch(r"n\d+", value) and tokens[place + 1] == ("sign", "[")
        and tokens[place - 1] != ("sign", "->")
    ]  # fmt: skip
    assert labels == [_shown(node) for node in found.nodes]


_LINES = {
    "head": r"flowchart LR",
    "open": r'  subgraph \w+_column \["(?P<title>[^"]*)"\]',
    "node": r'    n(?P<id>\d+)\[{1,2}"(?P<label>[^"]*)"\]{1,2}(:::\w+)?',
    "close": r"  end",
    "edge": r'  n(?P<from>\d+) -->\|"(?P<text>[^"]*)"\| n(?P<to>\d+)',
    "style": r"  linkStyle \d+ stroke:#\w{6},stroke-width:\d\.\dpx(,stroke-dasharray:\d+ \d+)?,color:#\w{6}",
    "class": r"  classDef \w+ [\w-]+:[\w ]+",
}


def _mermaid_label(escaped: str) -> str:
    return re.sub(r"#(\d+);", lambda found: chr(int(found[1])), escaped)


@UNTIMED
@given(_MAPS)
@example(FleetMap(tuple(MapNode(name, "prefill") for name in _HOSTILE), ()))
def test_mermaid_reads_what_is_on_the_map(found: FleetMap) -> None:
    """Each line is one of its kinds; a label has letters, digits, a few signs, and numbers of characters."""
    kinds: dict[str, list[re.Match[str]]] = {kind: [] for kind in _LINES}
    for line in mermaid_lines(found, _NOW):
        (kind,) = [kind for kind, pattern in _LINES.items() if re.fullmatch(pattern, line)]
        match = re.fullmatch(_LINES[kind], line)
        assert match
        kinds[kind].append(match)
    assert len(kinds["edge"]) == len(kinds["style"]) == len(found.edges)
    assert len(kinds["open"]) == len(kinds["close"])
    for match in (*kinds["node"], *kinds["edge"]):
        label = match["label"] if "label" in match.groupdict() else match["text"]
        assert re.fullmatch(r"(?:[A-Za-z0-9_ .,:/·-]|#\d+;)*", label)
    assert [_mermaid_label(match["label"]) for match in kinds["node"]] == [
        _shown(node) for node in found.nodes
    ]


@pytest.mark.parametrize("lines", [dot_lines, mermaid_lines])
def test_a_state_is_a_colour_a_pattern_and_a_word(lines: object) -> None:
    """Never a colour alone: three edges of three states differ in each."""
    edges = tuple(MapEdge("a", "b", "kv", condition) for condition in (_OK, _SLOW, _LOST))
    found = FleetMap((MapNode("a", "prefill"), MapNode("b", "decode")), edges)
    printed = "\n".join(lines(found, _NOW))  # type: ignore[operator]
    assert len({*re.findall(r"(?<!font)color=\"?(#\w+)|stroke:(#\w+)", printed)}) == 3
    patterns = re.findall(r'fontcolor="\S+", style="([^"]*)"|stroke-dasharray:(\d+ \d+),color', printed)
    assert len({*patterns}) + (lines is mermaid_lines) == 3
    assert [word for word in ("ok", "slow", "lost") if re.search(rf"\b{word}\b", printed)] == ["slow", "lost"]


def test_a_line_is_as_wide_as_it_moves_bytes() -> None:
    """On a logarithmic scale; what is not known is thin, and its label says so."""
    edge = MapEdge("a", "b", "kv", _OK, bytes_per_second=1e9, usual_speed=2e9)
    nodes = (MapNode("a", "prefill"), MapNode("b", "decode"))
    edges = (edge, replace(edge, bytes_per_second=1e12), replace(edge, bytes_per_second=None))
    printed = "\n".join(dot_lines(FleetMap(nodes, edges), _NOW))
    assert re.findall(r'penwidth="([\d.]+)"', printed) == ["4.0", "7.0", "1.0"]
    assert printed.count("usually 2 GB/s") == 3
    assert printed.count("bytes not known") == 1


def test_groups_and_those_in_trouble_are_told_apart() -> None:
    """By their lines and words, in both languages."""
    found = FleetMap(
        (MapNode("p1", "prefill", "a", True, True, 0, True), MapNode("p2", "prefill", "", True, False, int(940e9))),
        (MapEdge("prefill · a", "p2", "kv", _LOST, links=4, links_in_trouble=2, since_unix_nano=int(700e9)),),
        (MapGroup("prefill · a", "prefill", "a", ("p1", "p3"), 2, 1, 0),),
    )  # fmt: skip
    dot, mermaid = ("\n".join(lines(found, _NOW)) for lines in (dot_lines, mermaid_lines))
    assert 'label="prefill · a, 2 engines, 1 in trouble", peripheries="2"' in dot
    assert 'label="p1, a, in trouble", style="bold"' in dot
    assert 'label="p2, away for 60s", style="dashed"' in dot
    assert '[["prefill · a, 2 engines, 1 in trouble"]]' in mermaid
    assert 'n1["p1, a, in trouble"]:::trouble' in mermaid
    assert "lost #40;2 of 4#41; for 5m" in mermaid
