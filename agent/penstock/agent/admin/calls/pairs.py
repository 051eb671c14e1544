"""The call about pairs of engines, and which of them have loaded different weights."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.admin.support import clock_offsets, pair_engines
from penstock.agent.model import EngineKey
from penstock.agent.pairs import list_pairs
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.agent.admin.support import AgentContext
    from penstock.agent.metrics import PairKey, Speed
    from penstock.agent.traces.spans import RequestFacts


class _OtherWeights(NamedTuple):
    since: int
    peer_key: EngineKey
    evidence: str


class OtherWeights:
    """The engines whose peers have loaded other weights than they.

    What a process had loaded that ran before under the same name is not known: requests from before the younger of the
    two processes are left out.
    """

    def __init__(self, found: Mapping[tuple[EngineKey, str], _OtherWeights]) -> None:
        """Create the set.

        Args:
            found: by reader and the address of the peer that it reads from; since when by the reader's clock.

        """
        self._found = found

    def __bool__(self) -> bool:
        return bool(self._found)

    def may_read(self, key: EngineKey, address: str) -> bool:
        """Return whether a request of engine *key* with the peer *address* is worth a look."""
        return (key, address) in self._found

    def peer_of(self, facts: RequestFacts) -> EngineKey | None:
        """Return the engine that has other weights and that a request had as its peer."""
        found = self._of(facts)
        return found.peer_key if found is not None else None

    def evidence(self, facts: RequestFacts) -> str:
        """Return a sentence without its full stop about the weights of the peer of a request; empty where they do not differ."""
        found = self._of(facts)
        return found.evidence if found is not None else ""

    def _of(self, facts: RequestFacts) -> _OtherWeights | None:
        closing = facts.closing
        found = self._found.get((facts.source.key, closing.peer.address)) if closing is not None else None
        return found if found is not None and facts.start_unix_nano >= found.since else None


async def list_pairs_of(agent: AgentContext, _: admin.ListPairsRequest) -> admin.ListPairsResponse:
    """Return the pairs of all engines here, among themselves and with the peers that they know."""
    views, now = agent.registry.engines(), int(agent.clock() * 1e9)
    looks = agent.look_seconds()

    def speeds(key: EngineKey, moment: int) -> Mapping[PairKey, Speed]:
        return agent.aggregator.pair_speeds(key, moment, looks.get(key, 0.0))

    def compared() -> admin.ListPairsResponse:
        return list_pairs(pair_engines(views, speeds, now))

    # Sums of many windows, and many engines against each other, take longer than the loop may stand still.
    return await asyncio.to_thread(compared)


async def other_weights_of(agent: AgentContext) -> OtherWeights:
    """Return the pairs of engines here that are known to have loaded different weights."""
    views = {view.key: view for view in agent.registry.engines()}
    ahead = clock_offsets(views.values())
    found: dict[tuple[EngineKey, str], _OtherWeights] = {}
    for pair in (await list_pairs_of(agent, admin.ListPairsRequest())).pairs:
        if pair.weights != admin.PAIR_WEIGHTS_DIFFER or not (pair.peer.address and pair.HasField("peer_key")):
            continue
        key, peer = (EngineKey(each.server, each.engine) for each in (pair.key, pair.peer_key))
        begun = [
            views[each].start_time_unix_nano - ahead.get(each, 0) for each in (key, peer) if each in views
        ]
        values = next((each for each in pair.differences if each.fact == "weights"), admin.FactDifference())
        which = f" ({values.value} here, {values.peer_value} there)" if values.value else ""
        found[key, pair.peer.address] = _OtherWeights(
            since=max(begun, default=0) + ahead.get(key, 0),
            peer_key=peer,
            evidence=f"it read KV blocks of engine {peer}, which has loaded other weights{which}",
        )
    return OtherWeights(found)
