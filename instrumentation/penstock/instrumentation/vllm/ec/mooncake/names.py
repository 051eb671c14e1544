"""What Penstock adds to the messages of ``ECMooncakeConnector``: keys that vLLM itself does not read.

A producer names itself in its reservations (``penstock_peer``). The consumer's worker passes that and the reservation's time on with
the event that the item has come (``penstock_peer``, ``penstock_began``). The consumer's scheduler says with each step for which requests
items are loaded (``penstock_requests``, by transfer id).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.vllm.naming import Peer, peers

if TYPE_CHECKING:
    from collections.abc import Mapping

PEER: Final = "penstock_peer"
BEGAN: Final = "penstock_began"
REQUESTS: Final = "penstock_requests"


def peer_to_wire(peer: Peer) -> list[str]:
    """Return *peer* as JSON can hold it."""
    return [peer.address, peer.engine_id]


def peer_from_wire(message: Mapping[str, Any]) -> Peer:
    """Return the peer that *message* names, which came over a socket without authentication; unknown if it names none."""
    found = message.get(PEER)
    if not isinstance(found, list) or len(found) != len(("address", "engine_id")):
        return Peer()
    name, engine_id = found
    if not isinstance(name, str):
        return Peer()
    host, _, port = name.rpartition(":")
    return peers.named(host.removeprefix("[").removesuffix("]"), port, engine_id)


def began_from_wire(message: Mapping[str, Any]) -> int:
    """Return the nanoseconds (wall clock) that *message* says; 0 if it says none."""
    found = message.get(BEGAN)
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 < found < 1 << 63 else 0
