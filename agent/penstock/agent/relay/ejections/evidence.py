"""The servers of a fleet, and what the agents of their readers say of them. Pure.

An agent has one vote on a server, however many engines it has: a pod whose own network is broken, and an agent that lies, is
one reader.
"""

from __future__ import annotations

from collections import Counter
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.model import EngineKey
from penstock.agent.views.orders import pools_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from penstock.agent.views.router_feed import PeerReading
    from penstock.proto.v1 import admin_pb2 as admin
    from penstock.proto.v1.common_pb2 import EngineKey as EngineKeyMessage

# Causes that lie in the server, or in the way to it. Failed loads alone are none: a router that sends old references makes
# them fail anywhere.
_GROUNDS: Final = frozenset(
    {
        "peer_refuses",
        "peer_resets",
        "peer_times_out",
        "peer_fails",
        "peer_corrupts",
        "encoder_fails",
        "addresses_refuse",
    }
)
# A reader that sees none of at least so many servers well accuses itself.
_ALL_OF: Final = 2


class Server(NamedTuple):
    """One server with an engine that is connected.

    Attributes:
        name: with its agent's before it; unique.
        agent: its agent, one a pod.
        keys: of its engines, with the server's name.
        pools: of its engines: parts and models, in words.
        addresses: where others read from it; none that another server claims, too.
        order: what takes it out of rotation; None for nothing.

    """

    name: str
    agent: str
    keys: tuple[EngineKey, ...]
    pools: frozenset[str]
    addresses: tuple[str, ...]
    order: admin.Ejection | None


class Vote(NamedTuple):
    """What an agent says of a server.

    Attributes:
        failures: loads of the last minute that failed.
        why: the worst that it says, in words; empty where it is well.

    """

    agent: str
    is_bad: bool
    failures: int
    why: str


class SeenFleet(NamedTuple):
    """What the agents said in one look.

    Attributes:
        votes: on each server, by its name.
        agents: all of the fleet, by name.
        silent: those whose engines or peers are not known in this look: neither pods nor votes of theirs.

    """

    servers: Sequence[Server]
    votes: Mapping[str, Sequence[Vote]]
    agents: frozenset[str]
    silent: frozenset[str] = frozenset()


def servers_of(engines: Iterable[admin.Engine]) -> list[Server]:
    """Return the servers with their connected *engines*, which are named with their agents."""
    by_name: dict[str, list[admin.Engine]] = {}
    for engine in engines:
        if engine.connected:
            by_name.setdefault(engine.key.server, []).append(engine)
    addresses = {name: _addresses(found) for name, found in by_name.items()}
    claims = Counter(address for found in addresses.values() for address in found)
    return [
        Server(
            name,
            _agent_of(found[0].key),
            tuple(EngineKey(each.key.server, each.key.engine) for each in found),
            frozenset(pool for each in found for pool in pools_of(each)),
            tuple(sorted(address for address in addresses[name] if claims[address] == 1)),
            next((each.ejection for each in found if each.HasField("ejection")), None),
        )
        for name, found in sorted(by_name.items())
    ]


def votes_of(
    readings: Iterable[PeerReading], servers: Sequence[Server], drilled: Collection[EngineKey]
) -> dict[str, list[Vote]]:
    """Return the votes on each server, by its name.

    Args:
        readings: of all agents.
        servers: of the fleet.
        drilled: readers whose loads a drill makes fail: they do not count.

    """
    by_address = {address: server for server in servers for address in server.addresses}
    said: dict[tuple[str, str], list[PeerReading]] = {}
    for reading in readings:
        server = by_address.get(reading.address)
        reader = EngineKey(reading.reader.server, reading.reader.engine)
        agent = _agent_of(reading.reader)
        if server is None or agent == server.agent or reading.state == "unknown" or reader in drilled:
            continue
        said.setdefault((agent, server.name), []).append(reading)
    votes: dict[str, list[Vote]] = {}
    for (agent, name), found in sorted(said.items()):
        votes.setdefault(name, []).append(_vote(agent, found))
    return _without_accusers_of_all(votes)


def _vote(agent: str, found: Sequence[PeerReading]) -> Vote:
    grounds = [each for each in found if each.cause in _GROUNDS]
    why = (grounds[0].why or grounds[0].state) if grounds else ""
    return Vote(agent, bool(grounds), sum(each.failures for each in grounds), why)


def _without_accusers_of_all(votes: Mapping[str, list[Vote]]) -> dict[str, list[Vote]]:
    all_votes = [vote for found in votes.values() for vote in found]
    cast = Counter(vote.agent for vote in all_votes)
    bad = Counter(vote.agent for vote in all_votes if vote.is_bad)
    sick = {agent for agent, count in cast.items() if count >= _ALL_OF and bad[agent] == count}
    return {name: [vote for vote in found if vote.agent not in sick] for name, found in votes.items()}


def _agent_of(key: EngineKey | EngineKeyMessage) -> str:
    """Return the name of the agent, which has no slash, before the server's."""
    return key.server.partition("/")[0]


def _addresses(engines: Iterable[admin.Engine]) -> set[str]:
    """Return the addresses of engines that mean the same in every pod."""
    said = {address for each in engines for address in (each.facts.side_channel, each.facts.ec_address)}
    return {address for address in said if address and not _is_own(address)}


def _is_own(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback or ip_address(host).is_unspecified
    except ValueError:
        return host in ("", "localhost")
