"""Finds the agents of a registry of NATS."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from penstock.agent.policy.sources.nats_options import nats_access
from penstock.agent.relay.discovery.agent_places import AgentPlace
from penstock.agent.server import parse_tcp

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.agent.policy.sources import SourceSpec
    from penstock.agent.policy.sources.nats_options import NatsFiles


def registry_reader(spec: SourceSpec, files: NatsFiles) -> Callable[[], Awaitable[list[AgentPlace]]]:
    """Return what reads the agents of the registry *spec*; it raises OSError where it cannot.

    Raises:
        ConfigError: the client of NATS is not installed.

    """
    access = nats_access(spec, files, "--agents")
    from penstock.agent.policy.sources.nats.registry import find_agents  # noqa: PLC0415

    attempts = count()

    async def read() -> list[AgentPlace]:
        found = await find_agents(access, spec.place, next(attempts))
        return [AgentPlace(each.name, each.address) for each in found if _is_tcp(each.address)]

    return read


def _is_tcp(address: str) -> bool:
    """Return whether a registry's address is one; who may write there may write anything."""
    try:
        parse_tcp(address)
    except ValueError:
        return False
    return True
