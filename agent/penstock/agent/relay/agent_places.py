"""Which agents there are: a list, or the addresses of a DNS name. Pure, but for :func:`resolve_name`."""

from __future__ import annotations

import asyncio
import re
import socket
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.policy.sources.source_spec import parse_servers
from penstock.agent.server import TcpAddress, parse_address, parse_tcp

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.agent.policy.sources import SourceSpec

MAX_AGENTS = 2_000
# A name is the first part of an engine's: no separator of engines, options or lists.
_NAME = re.compile(r"[A-Za-z0-9\[](?:[A-Za-z0-9._:\[\]-]{0,251}[A-Za-z0-9\]])?")
_DNS = "dns:"
_NATS = ("nats://", "tls://")


class AgentPlace(NamedTuple):
    """One agent.

    Attributes:
        name: unique among the agents of a relay; the first part of its engines' names.
        address: of its admin service, ``host:port`` or ``unix:///path``.

    """

    name: str
    address: str


class AgentSet(NamedTuple):
    """What ``--agents`` says.

    Attributes:
        places: those with an address.
        names: ``host`` and port whose addresses are looked up again and again.
        registries: buckets of NATS that are read again and again.

    """

    places: tuple[AgentPlace, ...] = ()
    names: tuple[TcpAddress, ...] = ()
    registries: tuple[SourceSpec, ...] = ()


def parse_agents(text: str) -> AgentSet:
    """Parse ``NAME=ADDRESS``, ``ADDRESS``, ``dns:HOST:PORT`` and ``nats://…/BUCKET``, with commas between them.

    Raises:
        ValueError: what was expected.

    """
    places: list[AgentPlace] = []
    names: list[TcpAddress] = []
    registries: list[SourceSpec] = []
    for part in _parts(text):
        if part.startswith(_NATS):
            registries.append(parse_servers(part, "expected nats://HOST:PORT[,HOST:PORT…]/BUCKET"))
            continue
        if part.startswith(_DNS):
            names.append(parse_tcp(part.removeprefix(_DNS)))
            continue
        name, equals, address = part.rpartition("=")
        parsed = parse_address(address)
        name = name if equals else _name_of(str(parsed))
        if not _NAME.fullmatch(name):
            raise ValueError(f"agent name {name!r}: expected letters, digits and . _ : -")
        places.append(AgentPlace(name, str(parsed)))
    _check_unique(places)
    return AgentSet(tuple(places), tuple(names), tuple(registries))


def _parts(text: str) -> list[str]:
    """Return what stands between commas; the servers before a bucket stay together."""
    parts: list[str] = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        if parts and parts[-1].startswith(_NATS) and "/" not in parts[-1].partition("://")[2]:
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    return parts


def _check_unique(places: Iterable[AgentPlace]) -> None:
    seen: set[str] = set()
    for place in places:
        if place.name in seen:
            raise ValueError(f"agent {place.name} comes twice; give each a name: NAME={place.address}")
        seen.add(place.name)


def _name_of(address: str) -> str:
    """Return a name for an agent without one: its address, of a unix socket the directory's name."""
    if not address.startswith("unix:"):
        return address
    parts = [part for part in address.split("/") if part]
    return parts[-2] if len(parts) > 2 else parts[-1]  # noqa: PLR2004  (unix:, a directory, a socket)


async def resolve_name(name: TcpAddress) -> list[AgentPlace]:
    """Return an agent for each address of *name*, sorted.

    Raises:
        OSError: it cannot be resolved.

    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
    addresses = sorted({str(TcpAddress(str(each[4][0]), name.port)) for each in found})
    return [AgentPlace(address, address) for address in addresses]
