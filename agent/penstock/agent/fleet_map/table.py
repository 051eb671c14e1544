"""The map as a table: a row for each edge, then for each group; and the words that pictures and tables share. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.agent.badness import badness
from penstock.agent.views import text
from penstock.agent.views.peers import condition_colour, speed_words
from penstock.agent.views.tables import Table
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.agent.fleet_map.model import FleetMap, MapEdge, MapGroup

_GIGA: Final = 1e9
_LEAST: Final = 0.001
_WIDE: Final = 4


def edge_rows(found: FleetMap, now: float) -> Table:
    """Return the table of edges; bytes and failures are of the last 15 minutes, *now* in seconds."""
    return Table(
        ("FROM", "TO", "CHANNEL", "STATE", "SINCE", "GB/S", "FAILED", "SPEED",
         "TRANSFERS", "USUAL", "CAUSE", "WHY"),
        [
            (
                edge.source,
                edge.target,
                edge.channel,
                _styled_state(edge),
                since_words(edge, now) or text.NONE,
                _giga(edge.bytes_per_second),
                failed_words(edge) or text.NONE,
                _speed(edge.speed),
                text.NONE if edge.transfers is None else str(edge.transfers),
                _speed(edge.usual_speed),
                edge.cause or text.NONE,
                edge.reason or text.NONE,
            )
            for edge in found.edges
        ],
        wide=_WIDE,
    )  # fmt: skip


def group_rows(found: FleetMap) -> Table:
    """Return the table of groups."""
    return Table(
        ("GROUP", "ENGINES", "ADDRESSES", "IN-TROUBLE", "AWAY"),
        [
            (
                group.name,
                str(group.engines),
                str(len(group.members) - group.engines),
                text.style(str(group.in_trouble), "red") if group.in_trouble else "0",
                str(group.away),
            )
            for group in found.groups
        ],
    )


def left_out_words(found: FleetMap) -> str:
    """Return the sentence about edges that are left out; empty for none."""
    if not found.left_out:
        return ""
    more = text.count(found.left_out, "more edge")
    verb = "is" if found.left_out == 1 else "are"
    return f"{more} {verb} left out, the worst {verb} here; name an engine or a peer for its own"


def state_words(edge: MapEdge) -> str:
    """Return what is wrong: ``ok``, ``failing``, and of a sum ``failing (2 of 48)``."""
    word = text.word(admin.PeerCondition, edge.condition)
    if edge.links > 1 and edge.links_in_trouble:
        return f"{word} ({edge.links_in_trouble} of {edge.links})"
    return word


def since_words(edge: MapEdge, now: float) -> str:
    """Return for how long it has been wrong; empty for not known, and where nothing is."""
    return text.ago(edge.since_unix_nano, now).removesuffix(" ago") if edge.since_unix_nano else ""


def failed_words(edge: MapEdge) -> str:
    """Return the share of failed attempts: ``0%``, ``<1%``, ``12%``; empty for not known."""
    share = edge.failed_share
    if share is None:
        return ""
    return "<1%" if 0 < share < 0.01 else f"{share:.0%}"  # noqa: PLR2004  (what would be printed as 0%)


def rate_words(edge: MapEdge) -> str:
    """Return the bytes per second of an edge: ``1.2 GB/s``; ``bytes not known``."""
    return "bytes not known" if edge.bytes_per_second is None else speed_words(edge.bytes_per_second)


def edge_words(edge: MapEdge, now: float) -> list[str]:
    """Return the parts of a picture's label: what is wrong, what moves, and the share failed or else the usual speed."""
    parts = [f"{edge.channel} {rate_words(edge)}"]
    if badness(edge.condition) or not edge.condition:
        since = since_words(edge, now)
        parts.insert(0, f"{state_words(edge)} for {since}" if since else state_words(edge))
    if edge.failed:
        parts.append(f"{failed_words(edge)} failed")
    elif edge.usual_speed is not None:
        parts.append(f"usually {speed_words(edge.usual_speed)}")
    return parts


def group_counts(group: MapGroup) -> Iterable[str]:
    """Yield how many a group has of what: ``24 engines``, ``2 in trouble``."""
    addresses = len(group.members) - group.engines
    if group.engines:
        yield text.count(group.engines, "engine")
    if addresses:
        yield text.count(addresses, "address")
    if group.in_trouble:
        yield f"{group.in_trouble} in trouble"
    if group.away:
        yield f"{group.away} away"


def _styled_state(edge: MapEdge) -> str:
    look = condition_colour(edge.condition)
    return text.style(state_words(edge), look) if look else state_words(edge)


def _giga(bytes_per_second: float | None) -> str:
    if bytes_per_second is None:
        return text.NONE
    giga = bytes_per_second / _GIGA
    return f"<{_LEAST}" if 0 < giga < _LEAST else f"{giga:.3f}"


def _speed(bytes_per_second: float | None) -> str:
    return text.NONE if bytes_per_second is None else speed_words(bytes_per_second)
