"""What a request says about its items, by ``mm_hash``: which producer has them. It is the client's word."""

from __future__ import annotations

from typing import Any

from penstock.instrumentation.vllm.naming import Peer, address


def announced_peer(request: Any, item: str) -> Peer | None:
    """Return the producer that a request names for *item*; None if it names none, an unknown one if it cannot be one."""
    params = request.ec_transfer_params
    entry = params.get(item) if isinstance(params, dict) else None
    if not isinstance(entry, dict) or "peer_host" not in entry:
        return None
    return Peer(address(entry.get("peer_host"), entry.get("peer_port")))


def withdraw(request: Any, item: str) -> None:
    """Let a request name no producer for *item* any more: it is encoded here, as after a fall-back of vLLM's."""
    params = request.ec_transfer_params
    if isinstance(params, dict):
        request.ec_transfer_params = {name: value for name, value in params.items() if name != item}
