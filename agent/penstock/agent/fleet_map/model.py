"""What is on the map: nodes, the edges between them, and groups of nodes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.agent.badness import badness

if TYPE_CHECKING:
    from collections.abc import Iterable

WINDOW_SECONDS: Final = 15 * 60
"""Bytes, transfers and failures of an edge are those of so many seconds; of the last minute alone, what hangs had no width."""

ROLES: Final = ("encoder", "prefill", "both", "decode", "other")
"""The columns from left to right; ``other`` is an engine without a known role, or an address without a known engine."""


@dataclass(frozen=True, slots=True)
class MapNode:
    """An engine, or a peer's address behind which no engine is known.

    Attributes:
        name: of the engine, or the address; no two nodes have the same.
        role: one of `ROLES`.
        pool: the engine's label ``pool``; empty for none.
        is_engine: whether it is a known engine.
        connected: whether the engine is connected to its agent.
        away_since_unix_nano: when an engine that is not connected was last seen; 0 for not known.
        in_trouble: whether an edge in trouble is put down to it, see `MapEdge.at`.
        addresses: those that its peers know it at, in order.

    """

    name: str
    role: str
    pool: str = ""
    is_engine: bool = False
    connected: bool = False
    away_since_unix_nano: int = 0
    in_trouble: bool = False
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MapEdge:
    """State that moves over one channel, or may; or a sum of such edges.

    Attributes:
        source: who sends the state: the name of a node or of a group.
        target: who gets it.
        channel: ``kv``, ``ec``, or that of a newer agent.
        condition: ``PeerCondition`` as ``ListPeers`` gives it: the worst that either end says of the other.
        reason: its words.
        cause: the kind of the diagnosis' cause; empty for none.
        since_unix_nano: since when; 0 for not known, and where nothing is wrong.
        at: the end that more edges in trouble have in common; of two alike, the peer that the condition is about. Empty if
            nothing is wrong. It only says where a picture names something: what is wrong is the condition.
        bytes_per_second: the mean of `WINDOW_SECONDS`; None for not known.
        transfers: that ended in them, with failed attempts; None for not known.
        failed: of these; None for not known.
        speed: bytes/s of single transfers now, the median; None for not known.
        usual_speed: likewise of the day before.
        links: how many edges this is the sum of.
        links_in_trouble: of these.
        engine: the engine that says the condition; of a sum, that of the worst edge.
        peer: the address that it says it of.

    """

    source: str
    target: str
    channel: str
    condition: int = 0
    reason: str = ""
    cause: str = ""
    since_unix_nano: int = 0
    at: str = ""
    bytes_per_second: float | None = None
    transfers: int | None = None
    failed: int | None = None
    speed: float | None = None
    usual_speed: float | None = None
    links: int = 1
    links_in_trouble: int = 0
    engine: str = ""
    peer: str = ""

    @property
    def failed_share(self) -> float | None:
        """Failed attempts of all, 0 to 1; None for not known, and where nothing was tried."""
        if self.failed is None or not self.transfers:
            return None
        return self.failed / self.transfers

    @property
    def place(self) -> tuple[int, int, str, str, str]:
        """What edges are sorted by: the worst first, of alike ones that of the most in trouble, then by name."""
        return (-badness(self.condition), -self.links_in_trouble, self.source, self.target, self.channel)


@dataclass(frozen=True, slots=True)
class MapGroup:
    """Nodes of one role and pool.

    Attributes:
        name: as edges name it; that of no node.
        members: the names of its nodes, in order.
        engines: known engines among them; the others are addresses.
        in_trouble: nodes that edges in trouble are put down to.
        away: engines that are not connected.
        addresses: all of its nodes', in order.

    """

    name: str
    role: str
    pool: str
    members: tuple[str, ...]
    engines: int
    in_trouble: int
    away: int
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetMap:
    """A map.

    Attributes:
        nodes: by column, pool and name; of a grouped map those that are named beside their groups.
        edges: the worst first, then by name.
        groups: by column and pool; empty for a map that is not grouped.
        left_out: edges that a bound has left out.

    """

    nodes: tuple[MapNode, ...]
    edges: tuple[MapEdge, ...]
    groups: tuple[MapGroup, ...] = ()
    left_out: int = 0


def in_columns(nodes: Iterable[MapNode]) -> tuple[MapNode, ...]:
    """Return nodes by column, pool and name."""
    return tuple(sorted(nodes, key=lambda node: (ROLES.index(node.role), node.pool, node.name)))
