"""Table rows of pairs of engines. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.pairs import slowness
from penstock.agent.views import text
from penstock.agent.views.tables import Table
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterable

_COLOURS = {"no": "red", "differ": "red"}
_UNITS = ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"))


def pairs(items: Iterable[admin.Pair]) -> Table:
    """Return the table of pairs, a row for each."""
    return Table(
        ("ENGINE", "PEER", "COMPATIBLE", "GEOMETRY", "WEIGHTS", "REVISION", "BYTES/S", "USUAL", "TRANSPORT",
         "ADDRESS", "SIBLINGS", "SIZE", "WHY"),
        [
            (
                text.engine(item.key),
                peer_name(item),
                _styled(text.word(admin.PairCompatibility, item.compatible)),
                _both(item.geometry, item.peer_geometry),
                _styled(text.word(admin.PairWeights, item.weights)),
                _both(item.revision, item.peer_revision),
                _now(item.speed),
                _usual(item.speed),
                item.transport or text.NONE,
                item.peer.address or text.NONE,
                f"{item.speed.siblings_ratio:.0%}" if item.speed.HasField("siblings_ratio") else text.NONE,
                item.speed.size_class or text.NONE,
                why(item) or text.NONE,
            )
            for item in items
        ],
        wide=4,
    )  # fmt: skip


def peer_name(item: admin.Pair) -> str:
    """Return the other engine; its address where the engine is not known."""
    return text.engine(item.peer_key) if item.HasField("peer_key") else item.peer.address


def why(item: admin.Pair) -> str:
    """Return the reason of the verdict and every difference."""
    differences = [f"{each.fact} {each.value}≠{each.peer_value}" for each in item.differences]
    return "; ".join([item.reason, *(each for each in differences if each not in item.reason)])


def speed(bytes_per_second: float) -> str:
    """Return bytes/s: ``49 GB/s``, ``380 kB/s``."""
    for size, unit in _UNITS:
        if bytes_per_second >= size:
            return f"{bytes_per_second / size:.3g} {unit}"
    return f"{bytes_per_second:.0f} B/s"


def _styled(word: str) -> str:
    return text.style(word, _COLOURS[word]) if word in _COLOURS else word


def _both(own: str, peer: str) -> str:
    """Return what both sides have: once if it is the same."""
    if own == peer or not peer:
        return own or text.NONE
    return f"{own or text.NONE} ≠ {peer}"


def _now(item: admin.PairSpeed) -> str:
    if not item.count:
        return text.NONE
    word = speed(item.bytes_per_second)
    return text.style(word, "yellow") if slowness(item) else word


def _usual(item: admin.PairSpeed) -> str:
    if not item.usual_count:
        return text.NONE
    ratio = f" ({item.usual_ratio:.0%})" if item.HasField("usual_ratio") else ""
    return f"{speed(item.usual_bytes_per_second)}{ratio}"
