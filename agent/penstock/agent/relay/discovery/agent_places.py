"""Which agents there are: a list, or the addresses of a DNS name. Pure, but for :func:`resolve_name`."""

from __future__ import annotations

import asyncio
import re
import socket
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.parsing import parse_labels
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
_KUBERNETES = "kubernetes:"
_PORT = re.compile(r":\d+$")
_PORTS = 65_536


class AgentPlace(NamedTuple):
    """One agent.

    Attributes:
        name: unique among the agents of a relay; the first part of its engines' names.
        address: of its admin service, ``host:port`` or ``unix:///path``.

    """

    name: str
    address: str


class PodSelector(NamedTuple):
    """The pods of Kubernetes that have an agent.

    Attributes:
        namespace: empty for the relay's own.
        labels: in Kubernetes' selector syntax.
        port: of each agent's admin service.

    """

    namespace: str
    labels: str
    port: int

    @property
    def name(self) -> str:
        """What was given."""
        return f"{_KUBERNETES}{self.namespace and f'{self.namespace}:'}{self.labels}:{self.port}"


class AgentSet(NamedTuple):
    """What ``--agents`` says.

    Attributes:
        places: those with an address.
        names: ``host`` and port whose addresses are looked up again and again.
        registries: buckets of NATS that are read again and again.
        pods: pods of Kubernetes that are listed again and again.

    """

    places: tuple[AgentPlace, ...] = ()
    names: tuple[TcpAddress, ...] = ()
    registries: tuple[SourceSpec, ...] = ()
    pods: tuple[PodSelector, ...] = ()


def parse_agents(text: str) -> AgentSet:
    """Parse what ``--agents`` says, with commas between.

    ``NAME=ADDRESS``, ``ADDRESS``, ``dns:HOST:PORT``, ``nats://…/BUCKET`` and ``kubernetes:[NAMESPACE:]SELECTOR:PORT``.

    Raises:
        ValueError: what was expected.

    """
    places: list[AgentPlace] = []
    names: list[TcpAddress] = []
    registries: list[SourceSpec] = []
    pods: list[PodSelector] = []
    for part in _parts(text):
        if part.startswith(_NATS):
            registries.append(parse_servers(part, "expected nats://HOST:PORT[,HOST:PORT…]/BUCKET"))
            continue
        if part.startswith(_KUBERNETES):
            pods.append(_parse_pods(part))
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
    return AgentSet(tuple(places), tuple(names), tuple(registries), tuple(pods))


def _parts(text: str) -> list[str]:
    """Return what stands between commas; the servers before a bucket stay together, and the labels before a port."""
    parts: list[str] = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        last = parts[-1] if parts else ""
        if (last.startswith(_NATS) and "/" not in last.partition("://")[2]) or (
            last.startswith(_KUBERNETES) and not _PORT.search(last)
        ):
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    return parts


def _parse_pods(part: str) -> PodSelector:
    pieces = part.removeprefix(_KUBERNETES).split(":")
    *namespace, labels, port = pieces if len(pieces) in (2, 3) else ("", "", "")
    if not labels or not port.isdecimal() or not 0 < int(port) < _PORTS:
        raise ValueError("expected kubernetes:[NAMESPACE:]SELECTOR:PORT, such as kubernetes:app=vllm:9466")
    try:
        parse_labels(labels)
    except ValueError as error:
        raise ValueError(f"{part}: {error}") from None
    return PodSelector(namespace[0] if namespace else "", labels, int(port))


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
