"""Where a relay's agents are: a list, names of DNS, pods of Kubernetes, a registry of NATS; looked up again and again."""

from __future__ import annotations

import asyncio
import re
import socket
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import structlog
from penstock.agent.errors import ClusterError, PenstockError
from penstock.agent.parsing import parse_labels
from penstock.agent.policy.sources import SourceSpec
from penstock.agent.policy.sources.options import nats_access
from penstock.agent.policy.sources.source_spec import parse_servers
from penstock.agent.server import TcpAddress, parse_address, parse_tcp

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from penstock.agent.policy.sources.options import NatsFiles

    # Raises OSError where the agents cannot be found.
    Find = Callable[[], Awaitable[Sequence["AgentPlace"]]]

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


def pod_reader(
    selector: PodSelector, api: str, token_file: Path | None, ca: Path | None
) -> Callable[[], Awaitable[list[AgentPlace]]]:
    """Return what lists the agents of *selector*; it raises OSError where it cannot. An agent goes by its pod's name.

    Args:
        selector: of the pods.
        api: address of the API server; empty for that of this pod.
        token_file: for *api*.
        ca: for *api*.

    Raises:
        ConfigError: an option is missing, or this is no pod.

    """
    from penstock.agent.policy.kubernetes import ApiClient  # noqa: PLC0415
    from penstock.agent.policy.sources.followed_objects import cluster_access  # noqa: PLC0415

    spec = SourceSpec("kubernetes", selector.namespace)
    access = cluster_access(spec, api, token_file, ca, option="--agents kubernetes")

    async def read() -> list[AgentPlace]:
        try:
            async with ApiClient(access) as client:
                found = await client.pod_addresses(selector.labels)
        except ClusterError as error:
            raise OSError(str(error)) from error
        return [AgentPlace(name, _place(address, selector.port)) for name, address in sorted(found.items())]

    return read


def _place(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


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


_log = structlog.get_logger(__name__)
_SOURCE_SECONDS = 10.0
# Of the agents that are found twice as many are named.
_MAX_NAMED = 3


class AgentFinder:
    """The agents of a list, and those that sources know; the loop's.

    Attributes:
        places: of the agents, by name.
        error: a sentence about what cannot be read, or cannot be used; empty without any.

    """

    def __init__(self, agents: AgentSet, sources: Mapping[str, Find] = MappingProxyType({})) -> None:
        """Prepare it.

        Args:
            agents: their list, and names of DNS.
            sources: what else finds agents, by name.

        """
        self._listed = agents.places
        names = {f"dns:{name}": partial(resolve_name, name) for name in agents.names}
        self._sources: dict[str, Find] = {**names, **sources}
        self._last: dict[str, Sequence[AgentPlace]] = {}
        self.places, self.error = choose(self._listed)

    @property
    def changes(self) -> bool:
        """Whether there is anything to look up."""
        return bool(self._sources)

    async def look_up(self) -> None:
        """Read all sources; never fails."""
        troubles = await asyncio.gather(*(self._read(source, read) for source, read in self._sources.items()))
        found = [*self._listed]
        for source in self._sources:
            found += self._last.get(source, ())
        self.places, unusable = choose(found)
        error = "; ".join(filter(None, [*troubles, unusable]))
        if error and error != self.error:
            _log.warning("agents cannot be looked up", reason=error)
        self.error = error

    async def _read(self, source: str, read: Find) -> str:
        """Read one; return a sentence if it cannot be read: its agents stay."""
        try:
            async with asyncio.timeout(_SOURCE_SECONDS):
                self._last[source] = await read()
        except (OSError, PenstockError) as error:
            # TimeoutError is an OSError.
            reason = str(error) or "no answer"
        except Exception as error:  # noqa: BLE001  (what comes from outside ends no relay)
            reason = f"{type(error).__name__}: {error}"
        else:
            return ""
        return f"{source} cannot be read ({reason}); its last agents stay"


def choose(found: Iterable[AgentPlace]) -> tuple[dict[str, AgentPlace], str]:
    """Return the agents to ask, by name, and a sentence about those that cannot be asked. Pure.

    Of two agents of one name the one that comes first is asked; of too many those whose names are first.
    """
    places: dict[str, AgentPlace] = {}
    twice = []
    for place in found:
        first = places.setdefault(place.name, place)
        if first.address != place.address:
            twice.append(f"{place.name} ({first.address} is asked, {place.address} is not)")
    sentences = []
    if twice:
        more = f" and {len(twice) - _MAX_NAMED} more" if len(twice) > _MAX_NAMED else ""
        sentences.append(
            f"two agents of one name: {', '.join(twice[:_MAX_NAMED])}{more}; give each a name of its own"
        )
    if len(places) > MAX_AGENTS:
        sentences.append(
            f"{len(places)} agents were found, a relay asks {MAX_AGENTS}; start one for each part"
        )
        places = dict(sorted(places.items())[:MAX_AGENTS])
    return places, "; ".join(sentences)
