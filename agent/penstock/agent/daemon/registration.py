"""How relays find this agent: its name and address, which it keeps in a registry."""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.agent.errors import ConfigError
from penstock.agent.policy.sources.options import nats_access
from penstock.agent.server import TcpAddress, parse_tcp

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AsyncExitStack

    from penstock.agent.policy.sources import SourceSpec
    from penstock.agent.policy.sources.nats.registry import AgentRegistration
    from penstock.agent.policy.sources.options import NatsFiles

# A key of NATS that is an agent's name at a relay, too.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_ANY = frozenset({"0.0.0.0", "::", ""})  # noqa: S104  (what is compared with)


class Registration(NamedTuple):
    """The registry and what the agent keeps there.

    Attributes:
        registry: servers and bucket.
        name: unique among the agents of the registry.
        advertised: its address for relays; a port of 0 stands for that of the admin service.

    """

    registry: SourceSpec
    name: str
    advertised: TcpAddress


def parse_name(text: str) -> str:
    """Parse a name; empty for none.

    Raises:
        ValueError: what was expected.

    """
    if text and not _NAME.fullmatch(text):
        raise ValueError("expected letters, digits and . _ -")
    return text


def parse_advertised(text: str) -> TcpAddress | None:
    """Parse ``host:port``; None for nothing."""
    return parse_tcp(text) if text else None


def registration_of(values: Mapping[str, Any], environment: Mapping[str, str]) -> Registration | None:
    """Return the registration that the options ask for; None without a registry.

    Raises:
        ConfigError: the agent has no address that a relay could reach, or options have no use.

    """
    advertised: TcpAddress | None = values["advertise"]
    if values["registry"] is None:
        unused = "--advertise" if advertised else "--agent-name" if values["agent_name"] else ""
        if unused:
            raise ConfigError(f"{unused} is given, but no --registry; add it, or leave {unused} out")
        return None
    listening = next((each for each in values["admin_listen"] if isinstance(each, TcpAddress)), None)
    if listening is None:
        raise ConfigError(
            "--registry is given, but no --admin-listen is host:port, so that no relay could reach the agent; add one"
        )
    if advertised is None:
        host = environment.get("POD_IP", "") if listening.host in _ANY else listening.host
        if not host:
            raise ConfigError(
                f"--registry is given, and --admin-listen {listening} says no host that a relay could reach; "
                "set POD_IP by the downward API, or give --advertise HOST:PORT"
            )
        advertised = TcpAddress(host, listening.port)
    name = values["agent_name"] or environment.get("POD_NAME", "") or socket.gethostname()
    if not _NAME.fullmatch(name):
        raise ConfigError(f"the host's name {name!r} cannot be an agent's name; give --agent-name")
    return Registration(values["registry"], name, advertised)


def register_agent(
    registration: Registration, files: NatsFiles, listening: str, parts: AsyncExitStack
) -> AgentRegistration:
    """Keep the agent in the registry until *parts* close.

    Args:
        registration: what the options ask for.
        files: for NATS.
        listening: the admin service's real TCP address; its port stands for a port of 0.
        parts: closed when the agent ends; removes the entry.

    Raises:
        ConfigError: the client of NATS is not installed.

    """
    access = nats_access(registration.registry, files, "--registry")
    from penstock.agent.policy.sources.nats.registry import AgentRegistration, RegisteredAgent  # noqa: PLC0415

    host, port = registration.advertised.host, registration.advertised.port
    address = TcpAddress(host, port or parse_tcp(listening).port)
    kept = AgentRegistration(
        access, registration.registry.place, RegisteredAgent(registration.name, str(address))
    )
    task = asyncio.ensure_future(kept.run())

    async def end() -> None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    parts.push_async_callback(end)
    return kept
