"""Which engine of the fleet is behind an address: a peer of one pod is an engine of another."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from penstock.agent.relay.engine_names import qualify
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.agent.relay.fleet import Fleet
    from penstock.proto.v1.common_pb2 import EngineKey

_SECONDS: Final = 5.0
_Name = tuple[str, str]


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
            self._next = self._clock() + _SECONDS
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
                found[name] = (engine.key, engine.facts.side_channel or before)
        return found


def name_peers(rows: Iterable[admin.PeerSummary], engines: Mapping[str, EngineKey]) -> None:
    """Name the engines behind the addresses of *rows* that their own agents do not know."""
    for row in rows:
        if not row.HasField("engine") and row.peer.address in engines:
            row.engine.CopyFrom(engines[row.peer.address])
