"""The streaming calls: rollout progress and the kill switch."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.agent.admin.support import (
    checked_ttl,
    known_engines,
    pause_message,
    rollout_message,
    selected_targets,
    selection_of,
    targets_by_key,
)
from penstock.agent.errors import ContractError
from penstock.agent.parsing import Selection
from penstock.agent.policy.distribution import follow_rollout
from penstock.agent.policy.orders import MAX_PAUSE, with_front_ends

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from google.protobuf.duration_pb2 import Duration
    from penstock.agent.admin.support import AgentContext
    from penstock.proto.v1 import admin_pb2 as admin

_DEFAULT_TIMEOUT = 30.0
_LONGEST_TIMEOUT = 3600.0


async def watch_rollout(
    agent: AgentContext, request: admin.WatchRolloutRequest
) -> AsyncIterator[admin.Rollout]:
    """Stream the rollout of a store generation until every selected engine has answered, or the timeout."""
    present = agent.store.generation
    if request.store_generation > present:
        raise ContractError(
            f"store generation {request.store_generation} does not exist; the newest is {present}"
        )
    async for message in _follow(agent, selection_of(request.selector), request.timeout):
        yield message


async def set_paused(agent: AgentContext, request: admin.SetPausedRequest) -> AsyncIterator[admin.Rollout]:
    """Pause or resume engines, and stream the progress until every process of each follows."""
    selection = selection_of(request.selector)
    ttl = _ttl(request)
    if selection.everything:
        await agent.pauses.set(
            None, request.paused, author=request.author, which="all engines", reason=request.reason, ttl=ttl
        )
    else:
        selected = [target.key for target in selected_targets(agent, selection)]
        selection = Selection(keys=frozenset(selected))
        keys = with_front_ends(selected, targets_by_key(agent), request.paused, agent.pauses.is_paused)
        which = "engine " + ", ".join(str(key) for key in sorted(selected))
        await agent.pauses.set(
            keys, request.paused, author=request.author, which=which, reason=request.reason, ttl=ttl
        )
    async for message in _follow(agent, selection, request.timeout, pausing=request.paused):
        yield message


async def _follow(
    agent: AgentContext, selection: Selection, within: Duration, *, pausing: bool | None = None
) -> AsyncIterator[admin.Rollout]:
    seconds = within.ToNanoseconds() / 1e9 or _DEFAULT_TIMEOUT
    steps = follow_rollout(
        agent.feed,
        lambda: known_engines(agent),
        selection,
        within=min(seconds, _LONGEST_TIMEOUT),
        clock=agent.clock,
        pausing=pausing,
    )
    async for progress in steps:
        message = rollout_message(agent.store.generation, progress, agent.policies.now)
        for item, engine in zip(progress.engines, message.engines, strict=True):
            order = agent.pauses.of(item.key) if pausing else None
            if order is not None:
                engine.pause.CopyFrom(pause_message(order))
        yield message


def _ttl(request: admin.SetPausedRequest) -> timedelta | None:
    """Return the time to live of a pause; None for one without an end.

    Raises:
        ContractError: it is out of range, or given to a resume.

    """
    if not request.HasField("ttl"):
        return None
    if not request.paused:
        raise ContractError("a resume has no ttl; give one to a pause")
    return timedelta(microseconds=checked_ttl(request.ttl, MAX_PAUSE, "a pause") // 1000)
