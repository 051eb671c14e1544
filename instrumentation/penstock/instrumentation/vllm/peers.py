"""The other end of a transfer, as people know it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer by its side channel's ``host:port`` (``unknown`` where nobody said it) and its engine id."""

    address: str = UNKNOWN
    engine_id: str = ""

    def fields(self, rank: int | None = None) -> dict[str, Any]:
        """Return the fields of the wire's ``Peer``; *rank* is the peer's, where one rank is meant."""
        fields: dict[str, Any] = {"address": self.address, "engine_id": self.engine_id}
        if rank is not None:
            fields["rank"] = rank
        return fields


def address(host: object, port: object) -> str:
    """Return ``host:port`` (IPv6 in brackets), or ``unknown`` unless both are there."""
    if not host or not port:
        return UNKNOWN
    name = str(host)
    return f"[{name}]:{port}" if ":" in name and not name.startswith("[") else f"{name}:{port}"


def from_params(params: Mapping[str, Any] | None) -> Peer | None:
    """Return the peer that a request's ``kv_transfer_params`` name, or None if they name none."""
    if not params:
        return None
    peer = Peer(
        address(params.get("remote_host"), params.get("remote_port")),
        str(params.get("remote_engine_id") or ""),
    )
    return None if peer == Peer() else peer
