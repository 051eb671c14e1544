"""The call about pairs of engines, and which of them have loaded different weights."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.agent.admin.lookups import DifferentWeights, clock_offsets, pair_engines
from penstock.agent.model import EngineKey
from penstock.agent.pairs import list_pairs
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.agent.admin.lookups import AgentContext, OtherWeights, Place
    from penstock.agent.metrics import PairKey, Speed


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
    """Return the pairs of engines here that are known to have loaded different weights, now or since the agent began."""
    views = {view.key: view for view in agent.registry.engines()}
    ahead = clock_offsets(views.values())

    def began(key: EngineKey) -> int:
        """Return when the process of an engine began, by the agent's clock; 0 for not known."""
        return views[key].start_time_unix_nano - ahead.get(key, 0) if key in views else 0

    found: dict[Place, DifferentWeights] = {}
    for pair in (await list_pairs_of(agent, admin.ListPairsRequest())).pairs:
        if pair.weights != admin.PAIR_WEIGHTS_DIFFER or not (pair.peer.address and pair.HasField("peer_key")):
            continue
        key, peer = (EngineKey(each.server, each.engine) for each in (pair.key, pair.peer_key))
        values = next((each for each in pair.differences if each.fact == "weights"), admin.FactDifference())
        which = f" ({values.value} here, {values.peer_value} there)" if values.value else ""
        found[key, pair.peer.address] = DifferentWeights(
            since=max(began(key), began(peer)) + ahead.get(key, 0),
            peer_key=peer,
            evidence=f"it read KV blocks of engine {peer}, which had loaded other weights{which}",
            processes=tuple(views[each].start_time_unix_nano for each in (key, peer) if each in views),
        )

    def end(place: Place, each: DifferentWeights) -> int:
        # Until another process took the peer's place, which is seen a little later.
        key, now = place[0], int(agent.clock() * 1e9)
        next_began = began(each.peer_key) + ahead.get(key, 0)
        return next_began if each.since < next_began < now else now + ahead.get(key, 0)

    return agent.weights.update(found, end)
