"""The names of engines behind a relay: the server begins with the agent's name. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import EngineKey

if TYPE_CHECKING:
    from collections.abc import Iterable

_SEPARATOR = "/"


def qualify(key: EngineKey, agent: str) -> None:
    """Put the agent's name before the server of *key*, which is changed."""
    key.server = f"{agent}{_SEPARATOR}{key.server}" if key.server else agent


def qualify_all(keys: Iterable[EngineKey], agent: str) -> None:
    """Put the agent's name before the server of each of *keys*."""
    for key in keys:
        qualify(key, agent)


def agent_of(key: EngineKey) -> str:
    """Return the name of the agent that a qualified *key* is of."""
    return key.server.partition(_SEPARATOR)[0]


def own_key(key: EngineKey, agent: str) -> EngineKey | None:
    """Return *key* as the agent knows it; None if it is another agent's."""
    name, _, server = key.server.partition(_SEPARATOR)
    return EngineKey(server=server, engine=key.engine) if name == agent else None


def own_selector(selector: admin.EngineSelector, agent: str) -> admin.EngineSelector | None:
    """Return *selector* for one agent; None if it names engines and all are others' engines."""
    if not selector.engines:
        return selector
    own = [found for key in selector.engines if (found := own_key(key, agent)) is not None]
    if not own:
        return None
    return admin.EngineSelector(labels=selector.labels, models=selector.models, engines=own)
