"""The call about pairs of engines."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.agent.admin.support import pair_engines
from penstock.agent.pairs import list_pairs

if TYPE_CHECKING:
    from penstock.agent.admin.support import AgentContext
    from penstock.proto.v1 import admin_pb2 as admin


async def list_pairs_of(agent: AgentContext, _: admin.ListPairsRequest) -> admin.ListPairsResponse:
    """Return the pairs of all engines here, among themselves and with the peers that they know."""
    views, now = agent.registry.engines(), int(agent.clock() * 1e9)

    def compared() -> admin.ListPairsResponse:
        return list_pairs(pair_engines(views, agent.aggregator.pair_speeds, now))

    # Sums of many windows, and many engines against each other, take longer than the loop may stand still.
    return await asyncio.to_thread(compared)
