"""Peers that are asked for by their address, or by the name of the engine there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.agent.views.peers import peer_name
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Collection


def peers_request(names: Collection[str], **fields: Any) -> admin.ListPeersRequest:
    """Return the question for peers of these *names*; none asks for all, and so does one that may be an engine's.

    Agents look for addresses only: pick with :func:`is_named` from what they answer.
    """
    asked = names if all(":" in name for name in names) else ()
    return admin.ListPeersRequest(peers=asked, **fields)


def is_named(item: admin.PeerSummary, names: Collection[str]) -> bool:
    """Return whether a peer goes by one of *names*."""
    return item.peer.address in names or peer_name(item) in names
