"""What the orders of an operator have in common: which engines they mean, and for how long."""

from __future__ import annotations

import re
import secrets
from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.agent.admin.support.targets import targets
from penstock.agent.errors import ContractError, NotFoundError
from penstock.agent.parsing import format_duration, no_engine, select
from penstock.agent.policy.store import MAX_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from google.protobuf.duration_pb2 import Duration
    from penstock.agent.admin.support.context import AgentContext
    from penstock.agent.model import EngineKey
    from penstock.agent.parsing import Selection, Target
    from penstock.agent.policy.distribution import Subscriber

_SHORTEST = timedelta(seconds=1)
_PEER = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s:\[\]]{1,253}):\d{1,5}")


def new_id() -> str:
    """Return an id that no order has had."""
    return secrets.token_hex(4)


def who_and_why(author: str, reason: str) -> dict[str, str]:
    """Return both as fields of an order, as long as the audit log takes them."""
    return {"author": author[:MAX_WORDS], "reason": reason[:MAX_WORDS]}


def checked_peer(peer: str) -> str:
    """Return *peer*.

    Raises:
        ContractError: it is no address of a peer.

    """
    if not _PEER.fullmatch(peer):
        raise ContractError(
            f"peer {peer!r} cannot be read; write its side channel's host:port ('agentctl get peers' lists them)"
        )
    return peer


def timedelta_of(duration: Duration) -> timedelta:
    """Return *duration*; one that Python cannot hold as the longest or the shortest that it can."""
    try:
        return duration.ToTimedelta()
    except OverflowError:
        return timedelta.max if duration.seconds > 0 else timedelta.min


def checked_ttl(ttl: Duration, most: timedelta, what: str) -> int:
    """Return *ttl* in nanoseconds.

    Raises:
        ContractError: it is not between 1 s and *most*; *what* names the thing that ends by it.

    """
    given = timedelta_of(ttl)
    if not _SHORTEST <= given <= most:
        raise ContractError(
            f"{what} ends by itself: its ttl is {format_duration(given)}, "
            f"give one from {format_duration(_SHORTEST)} to {format_duration(most)}"
        )
    return ttl.ToNanoseconds()


def check_names(agent: AgentContext, selection: Selection) -> Mapping[EngineKey, Target]:
    """Return all engines, by name.

    Raises:
        NotFoundError: there is none of a name that *selection* gives.

    """
    known = targets(agent)
    for key in sorted(selection.keys - known.keys()):
        raise NotFoundError(no_engine(key, known))
    return known


def selected_targets(agent: AgentContext, selection: Selection) -> list[Target]:
    """Return the engines that *selection* means now.

    Raises:
        NotFoundError: there is none, or not one of those that it names.

    """
    known = check_names(agent, selection)
    found = select(known.values(), selection)
    if not found:
        raise NotFoundError("no engine fits the selector; 'agentctl get engines -o wide' shows labels")
    return found


def subscribed(agent: AgentContext, found: list[Target]) -> Iterator[Subscriber]:
    """Yield those of *found* that are in the policy feed now."""
    for target in found:
        subscriber = agent.feed.subscriber(target.key)
        if subscriber is not None and subscriber.connected:
            yield subscriber
