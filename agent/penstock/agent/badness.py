"""How bad the condition of a peer is: one order for the agent, the relay, the page and ``agentctl``. Pure."""

from __future__ import annotations

from typing import Final

from penstock.proto.v1 import admin_pb2 as admin

NO_SERVERS: Final = {
    "host": "this machine's memory",
    "disk": "this machine's disk",
    "unknown": "an unknown peer",
}
"""Peers that are none, and what sentences call them: where engines keep state themselves, and what connectors do not name."""

# The best first. What is quarantined is taken care of; wrong answers are worse than late ones, and late ones than none.
_ORDER: Final = (
    frozenset({admin.PEER_CONDITION_UNSPECIFIED, admin.PEER_CONDITION_IDLE, admin.PEER_CONDITION_OK}),
    frozenset({admin.PEER_CONDITION_QUARANTINED}),
    frozenset({admin.PEER_CONDITION_SLOW}),
    frozenset({admin.PEER_CONDITION_FAILING}),
    frozenset({admin.PEER_CONDITION_INCOMPATIBLE}),
    frozenset({admin.PEER_CONDITION_UNREACHABLE}),
    frozenset({admin.PEER_CONDITION_LOST}),
    frozenset({admin.PEER_CONDITION_WRONG_ENGINE}),
    frozenset({admin.PEER_CONDITION_HANGING}),
    frozenset({admin.PEER_CONDITION_OTHER_WEIGHTS}),
    frozenset({admin.PEER_CONDITION_SHARED_ID}),
)
_RANKS: Final[dict[int, int]] = {number: rank for rank, group in enumerate(_ORDER) for number in group}


def badness(condition: int) -> int:
    """Return how bad a ``PeerCondition`` is; 0 where nothing is wrong. One of a newer version is the worst."""
    return _RANKS.get(condition, len(_ORDER))


def list_place(condition: int, address: str) -> tuple[int, int]:
    """Return what lists of peers are sorted by: what is wrong, the worst first, then what is well.

    Peers that are none stand behind the others that something is wrong with.
    """
    rank = badness(condition)
    return (int(address in NO_SERVERS) if rank else 2, -rank)
