"""The peers of all agents: the worst of each are the worst of all, but for the cells of a table.

Which engine of the fleet is behind an address: a peer of one pod is an engine of another.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from penstock.agent.badness import list_place
from penstock.agent.relay.merged_answers import qualify
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.agent.relay.fleet import Fleet
    from penstock.proto.v1.common_pb2 import EngineKey

_MAX_UINT32 = (1 << 32) - 1

_Engine = tuple[str, str]


_ENGINES_KEPT_SECONDS: Final = 5.0
_Name = tuple[str, str]


def merge_peers(
    answers: Sequence[tuple[str, Any]], request: admin.ListPeersRequest
) -> admin.ListPeersResponse:
    """Return the peers of all agents that *request* asks for, the worst first.

    The answers are by agent's name and are changed. An agent that does not know limits answers with all of its peers.
    """
    merged = admin.ListPeersResponse()
    rows: list[admin.PeerSummary] = []
    names, whole = frozenset(request.peers), True
    for name, answer in answers:
        own = [peer for peer in answer.peers if not names or peer.peer.address in names]
        for peer in own:
            _qualify(peer, name)
        rows += own
        merged.left_out = min(merged.left_out + answer.left_out, _MAX_UINT32)
        merged.total = min(merged.total + (answer.total or len(own)), _MAX_UINT32)
        whole &= answer.total <= len(own)
    if whole:
        merged.total_peers = len({peer.peer.address for peer in rows})
    elif len(answers) == 1:
        merged.total_peers = answers[0][1].total_peers
    # Each agent's are in the order of how bad they are; that order stays among equals.
    rows.sort(key=_place)
    if request.most_peers:
        rows = table_rows(rows, request.most_peers, request.most_engines)
    merged.peers.extend(rows[: request.limit or None])
    return merged


def table_rows(
    rows: Sequence[admin.PeerSummary], most_peers: int, most_engines: int
) -> list[admin.PeerSummary]:
    """Return what an answer has of *rows*, the worst first, for a table of so many addresses by so many engines."""
    by_address: dict[str, admin.PeerSummary] = {}
    by_engine: dict[_Engine, admin.PeerSummary] = {}
    for row in rows:
        by_address.setdefault(row.peer.address, row)
        by_engine.setdefault(_engine(row), row)
    addresses = dict([*by_address.items()][:most_peers])
    worst = sorted(by_engine, key=lambda engine: (_place(by_engine[engine]), engine))[:most_engines]
    engines = {engine: by_engine[engine] for engine in worst}
    firsts = {id(row) for row in (*addresses.values(), *engines.values())}
    return [
        row
        for row in rows
        if id(row) in firsts or (row.peer.address in addresses and _engine(row) in engines)
    ]


def cells_request(table: admin.ListPeersResponse, request: admin.ListPeersRequest) -> admin.ListPeersRequest:
    """Return the question for all cells of *table*: an agent leaves out peers that are among the worst elsewhere only."""
    asked = admin.ListPeersRequest(
        state=request.state,
        peers=list(dict.fromkeys(row.peer.address for row in table.peers))[: request.most_peers],
    )
    asked.selector.CopyFrom(request.selector)
    del asked.selector.engines[:]
    by_engine: dict[_Engine, admin.PeerSummary] = {}
    for row in table.peers:
        by_engine.setdefault(_engine(row), row)
    worst = sorted(by_engine, key=lambda engine: (_place(by_engine[engine]), engine))
    asked.selector.engines.extend(by_engine[engine].key for engine in worst[: request.most_engines])
    return asked


def add_cells(
    table: admin.ListPeersResponse, answers: Iterable[tuple[str, Any]], asked: admin.ListPeersRequest
) -> None:
    """Add the rows to *table* that the answers to *asked* have and it has not."""
    known = {(*_engine(row), row.peer.address) for row in table.peers}
    names = frozenset(asked.peers)
    for name, answer in answers:
        for row in answer.peers:
            _qualify(row, name)
            if row.peer.address in names and (*_engine(row), row.peer.address) not in known:
                table.peers.append(row)
    table.peers.sort(key=_place)


def _qualify(row: admin.PeerSummary, agent: str) -> None:
    qualify(row.key, agent)
    if row.HasField("engine"):
        qualify(row.engine, agent)


def _place(row: admin.PeerSummary) -> tuple[int, int]:
    return list_place(row.condition, row.peer.address)


def _engine(row: admin.PeerSummary) -> _Engine:
    return row.key.server, row.key.engine


class FleetAddresses:
    """The addresses of all engines, as the agents have said in the last five seconds.

    Args:
        clock: seconds that only grow.

    """

    def __init__(self, fleet: Fleet, clock: Callable[[], float] = time.monotonic) -> None:
        self._fleet = fleet
        self._clock = clock
        self._next = 0.0
        self._found: dict[_Name, tuple[EngineKey, str]] = {}

    async def engines(self, remaining: float | None) -> Mapping[str, EngineKey]:
        """Return the engine behind each address, none where several have it; *remaining*: seconds that the caller waits."""
        if self._clock() >= self._next:
            self._next = self._clock() + _ENGINES_KEPT_SECONDS
            request = admin.ListEnginesRequest(without_counters=True)
            answers = await self._fleet.ask("ListEngines", request, remaining)
            said = [(each.agent.place.name, each.response) for each in answers.found]
            self._found = await asyncio.to_thread(self._said, said)
        claims = Counter(address for _, address in self._found.values())
        return {address: key for key, address in self._found.values() if address and claims[address] == 1}

    def _said(
        self, answers: Iterable[tuple[str, admin.ListEnginesResponse]]
    ) -> dict[_Name, tuple[EngineKey, str]]:
        found: dict[_Name, tuple[EngineKey, str]] = {}
        for agent, answer in answers:
            for engine in answer.engines:
                qualify(engine.key, agent)
                name = (engine.key.server, engine.key.engine)
                # An engine that has gone tells no facts any more.
                before = self._found[name][1] if name in self._found and not engine.connected else ""
                found[name] = (engine.key, engine.facts.side_channel or engine.facts.ec_address or before)
        return found


def name_peers(rows: Iterable[admin.PeerSummary], engines: Mapping[str, EngineKey]) -> None:
    """Name the engines behind the addresses of *rows* that their own agents do not know."""
    for row in rows:
        if not row.HasField("engine") and row.peer.address in engines:
            row.engine.CopyFrom(engines[row.peer.address])
