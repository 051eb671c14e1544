"""``Forget``: drops an engine or a peer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.admin.lookups import (
    author_and_reason,
    engine_key_of,
    messages,
    selected_targets,
    selection_of,
)
from penstock.agent.errors import ContractError
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from penstock.agent.admin.lookups import AgentContext


async def forget(agent: AgentContext, request: admin.ForgetRequest) -> admin.ForgetResponse:
    """Forget a disconnected engine, or a peer not in use, before --retire-after ends."""
    if request.HasField("engine") == bool(request.peer):
        raise ContractError("give either engine or peer")
    who = author_and_reason(request.author, request.reason)
    if request.HasField("engine"):
        keys = [engine_key_of(request.engine)]
        await agent.retirement.forget_engine(keys[0], **who)
    else:
        selection = selection_of(request.selector)
        chosen = None if selection.everything else selected_targets(agent, selection)
        keys = await agent.retirement.forget_peer(
            request.peer, None if chosen is None else [target.key for target in chosen], **who
        )
    return admin.ForgetResponse(engines=map(messages.key_message, keys))
