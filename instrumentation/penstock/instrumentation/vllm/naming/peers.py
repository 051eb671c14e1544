"""The other end of a transfer, by address and engine id."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

UNKNOWN: Final = "unknown"

TEXT_MAX: Final = 256
"""Characters of an id that are kept: clients name peers, and a name is kept as long as its handshake is."""

_PORT_MAX: Final = 65_535

REMOTE_PREFILLER: Final = "remote_prefiller"
"""The P2P tier's parameter of a request that another engine prefills."""
REMOTE_DECODER: Final = "remote_decoder"
"""The P2P tier's parameter of a request that is prefilled for another engine."""
REMOTE_KV_SOURCE: Final = "remote_kv_source"
"""The P2P tier's parameter of a request whose KV another engine may have."""

_NAMED_MAX: Final = 1024
"""Names whose peers are kept."""

# Host names and addresses with and without a scope; nothing else is an address to look for.
_HOST: Final = re.compile(r"[A-Za-z0-9._:%\[\]-]{1,253}")


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer by its side channel's ``host:port`` (``unknown`` where it is not known) and its engine id."""

    address: str = UNKNOWN
    engine_id: str = ""

    def fields(self, rank: int | None = None) -> dict[str, Any]:
        """Return the fields of the wire's ``Peer``; *rank* is the peer's, where one rank is meant."""
        fields: dict[str, Any] = {"address": self.address, "engine_id": self.engine_id}
        if rank is not None:
            fields["rank"] = rank
        return fields


def address(host: object, port: object) -> str:
    """Return ``host:port`` (IPv6 in brackets), or ``unknown`` unless both are there and can be one."""
    if not isinstance(host, str) or _HOST.fullmatch(host) is None:
        return UNKNOWN
    if isinstance(port, str) and len(port) <= len(str(_PORT_MAX)) and port.isascii() and port.isdigit():
        port = int(port)
    if not isinstance(port, int) or not 0 < port <= _PORT_MAX:
        return UNKNOWN
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def identifier(value: object) -> str:
    """Return an id that a client or a peer gave, cut to ``TEXT_MAX`` characters; empty for what is no string."""
    if not isinstance(value, str):
        return ""
    cut = value[:TEXT_MAX]
    return cut if cut.isascii() else cut.encode(errors="replace").decode()


def named(host: object, port: object, engine_id: object) -> Peer:
    """Return the peer of that name; parts of a wrong type count as unknown."""
    if not (isinstance(host, str) and isinstance(port, int) and isinstance(engine_id, str)):
        return Peer(address(host, port), identifier(engine_id))
    # Each load names its peer, and there are few peers; a client's long text is not kept.
    of = _named if max(len(host), len(engine_id)) <= TEXT_MAX else _named.__wrapped__
    return of(host, port, engine_id)


@lru_cache(maxsize=_NAMED_MAX, typed=True)
def _named(host: str, port: int, engine_id: str) -> Peer:
    return Peer(address(host, port), identifier(engine_id))


def from_params(params: Mapping[str, Any] | None) -> Peer | None:
    """Return the peer that a request's ``kv_transfer_params`` name, or None if they name none."""
    if not params or not isinstance(params, Mapping):
        return None
    host, port = params.get("remote_host"), params.get("remote_port")
    if host is None:
        # Mooncake's bootstrap server, which knows the engines' addresses; there is one per prefill engine.
        host, port = _authority(params.get("remote_bootstrap_addr"))
    peer = named(host, port, params.get("remote_engine_id"))
    return None if peer == Peer() else peer


def of_tier(params: Mapping[str, Any] | None) -> Peer | None:
    """Return the engine whose memory a request's KV may come from by vLLM's P2P tier, or None.

    It nests in ``kv_transfer_params``: in ``remote_prefiller``, where another engine prefills the request, or else in
    ``remote_kv_source``, which is asked what it has. The tier ignores a source without an address or a ``kv_request_id``,
    and looks at the second only where the first is absent.
    """
    if not params or not isinstance(params, Mapping):
        return None
    source = params.get(REMOTE_PREFILLER)
    if source is None:
        source = params.get(REMOTE_KV_SOURCE)
    if not isinstance(source, Mapping) or not source.get("kv_request_id"):
        return None
    peer = named(source.get("remote_host"), source.get("remote_port"), source.get("remote_engine_id"))
    return None if peer.address == UNKNOWN else peer


def _authority(url: object) -> tuple[str, str]:
    """Return host and port of ``http://host:port``; of anything else, parts that :func:`address` refuses."""
    if not isinstance(url, str):
        return "", ""
    host, _, port = url[:TEXT_MAX].rpartition("//")[2].partition("/")[0].rpartition(":")
    return host, port
