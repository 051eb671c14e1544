"""``GetStacks``: what the threads of an engine execute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.agent.admin.lookups import author_and_reason, engine_key_of, messages, targets_by_key
from penstock.agent.errors import ImpossibleError, NotFoundError
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from penstock.agent.admin.lookups import AgentContext

ANSWER_SECONDS: Final = 4.0
"""Less than a relay waits for an agent in this call (8 s). An engine answers at once, or within a second if its step hangs."""


async def get_stacks(agent: AgentContext, request: admin.GetStacksRequest) -> admin.EngineStacks:
    """Ask the EngineCore of one engine; the question is in the audit log whatever the answer is."""
    key = engine_key_of(request.key)
    if key not in targets_by_key(agent):
        raise NotFoundError(f"there is no engine {str(key)!r}; 'agentctl get engines' lists them")
    await agent.orders.record_question(f"engine {key}", **author_and_reason(request.author, request.reason))
    subscriber = agent.feed.subscriber(key)
    if subscriber is None or not subscriber.connected:
        raise ImpossibleError(
            f"engine {key} is not connected to the policy feed, which carries the request; "
            f"'agentctl describe engine {key}' says since when"
        )
    dump = await agent.feed.ask_stacks(subscriber, ANSWER_SECONDS)
    if dump is None:
        raise ImpossibleError(
            f"engine {key} has not answered within {ANSWER_SECONDS:g} s: its penstock is too old for this call, or the "
            "whole process stands still (a native call that holds Python's lock)"
        )
    if dump.refusal:
        raise ImpossibleError(f"engine {key}: {dump.refusal}")
    return admin.EngineStacks(key=messages.key_message(key), processes=[dump])
