"""``ListHolders``: KV blocks that no request computes with, from the live snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.admin.lookups import engine_holders, key_message, selected_views, selection_of
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from penstock.agent.admin.lookups import AgentContext


async def list_holders(agent: AgentContext, request: admin.ListHoldersRequest) -> admin.ListHoldersResponse:
    """Return who holds blocks in the selected engines, most blocks of an engine first."""
    response = admin.ListHoldersResponse()
    for view in selected_views(agent, selection_of(request.selector)):
        snapshots = [live.snapshot for live in view.sources if live.connected and live.snapshot is not None]
        if not snapshots:
            response.unknown.append(key_message(view.key))
            continue
        blocks = view.facts.num_gpu_blocks if view.facts is not None else 0
        response.holders.extend(engine_holders(view.key, snapshots, blocks))
    return response
