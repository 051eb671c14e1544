"""The fields that all operator orders share: id, author, reason, peer, time to live."""

from __future__ import annotations

import re
import secrets
from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.agent.errors import ContractError
from penstock.agent.parsing import format_duration
from penstock.agent.policy.store import MAX_TEXT

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration

_SHORTEST = timedelta(seconds=1)
_PEER = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s:\[\]]{1,253}):\d{1,5}")


def new_order_id() -> str:
    """Return a random id of 8 hex digits."""
    return secrets.token_hex(4)


def author_and_reason(author: str, reason: str) -> dict[str, str]:
    """Return both as fields of an order, cut to the audit log's limit."""
    return {"author": author[:MAX_TEXT], "reason": reason[:MAX_TEXT]}


def checked_peer(peer: str) -> str:
    """Return *peer*.

    Raises:
        ContractError: it is not ``host:port``.

    """
    if not _PEER.fullmatch(peer):
        raise ContractError(
            f"peer {peer!r} is not valid; give its side channel as host:port ('agentctl get peers' lists them)"
        )
    return peer


def timedelta_of(duration: Duration) -> timedelta:
    """Return *duration*, clamped to Python's range."""
    try:
        return duration.ToTimedelta()
    except OverflowError:
        return timedelta.max if duration.seconds > 0 else timedelta.min


def checked_ttl(ttl: Duration, most: timedelta, what: str) -> int:
    """Return *ttl* in nanoseconds.

    Raises:
        ContractError: it is not between 1 s and *most*; *what* names the order in the sentence.

    """
    given = timedelta_of(ttl)
    if not _SHORTEST <= given <= most:
        raise ContractError(
            f"the ttl of {what} is {format_duration(given)}; "
            f"give one from {format_duration(_SHORTEST)} to {format_duration(most)}"
        )
    return ttl.ToNanoseconds()
