"""The streaming calls: the delivery of policies, and the kill switch."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.agent.admin.lookups import (
    checked_ttl,
    delivery_message,
    key_message,
    known_engines,
    pause_message,
    selected_targets,
    selection_of,
    targets_by_key,
)
from penstock.agent.errors import ContractError, ImpossibleError
from penstock.agent.parsing import Selection, select
from penstock.agent.policy.distribution import follow_delivery
from penstock.agent.policy.orders import MAX_PAUSE, with_front_ends
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from google.protobuf.duration_pb2 import Duration
    from penstock.agent.admin.lookups import AgentContext

_DEFAULT_TIMEOUT = 30.0
_LONGEST_TIMEOUT = 3600.0
_LEAST_TIMEOUT = 0.1
# Between looks at what the agent has read of a source.
_LOOK_SECONDS = 0.05


async def watch_rollout(
    agent: AgentContext, request: admin.WatchRolloutRequest
) -> AsyncIterator[admin.Rollout]:
    """Stream the delivery of a store generation until every selected engine has answered, or the timeout."""
    present = agent.store.generation
    if request.store_generation > present:
        raise ContractError(
            f"store generation {request.store_generation} does not exist; the newest is {present}"
        )
    selection, end = selection_of(request.selector), time.monotonic() + _seconds(request.timeout)
    if request.HasField("source"):
        async for message in _until_read(agent, request.source, selection, end):
            yield message
    async for message in _follow(agent, selection, max(end - time.monotonic(), _LEAST_TIMEOUT)):
        yield message


async def _until_read(
    agent: AgentContext, written: admin.SourceWrite, selection: Selection, end: float
) -> AsyncIterator[admin.Rollout]:
    """Wait until the agent has a policy as it was written to its source; say first who waits for it.

    Raises:
        ImpossibleError: the agent does not follow that source, refuses the policy, or has not read it until *end*
            (monotonic seconds).

    """
    said = False
    while True:
        if agent.sources is None:
            raise ImpossibleError("the agent follows no policy source; see --policy-source of penstock-agent")
        if agent.sources.brings(written.kind, written.place, written.name, written.content, written.revision):
            return
        if time.monotonic() >= end:
            problem = agent.sources.problem()
            raise ImpossibleError(
                f"the agent does not have policy {written.name!r} as it was written to {written.kind} "
                f"{written.place!r}: it has not read it in time, or it was changed since"
                + (f"; {problem}" if problem else "")
            )
        if not said:
            said = True
            connected = [engine.target for engine in known_engines(agent) if engine.connected]
            waiting = [
                admin.EngineRollout(key=key_message(target.key), state="waiting")
                for target in select(connected, selection)
            ]
            yield admin.Rollout(store_generation=agent.store.generation, engines=waiting)
        await asyncio.sleep(_LOOK_SECONDS)


def _seconds(within: Duration) -> float:
    return min(within.ToNanoseconds() / 1e9 or _DEFAULT_TIMEOUT, _LONGEST_TIMEOUT)


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
    async for message in _follow(agent, selection, _seconds(request.timeout), pausing=request.paused):
        yield message


async def _follow(
    agent: AgentContext, selection: Selection, within: float, *, pausing: bool | None = None
) -> AsyncIterator[admin.Rollout]:
    steps = follow_delivery(
        agent.feed,
        lambda: known_engines(agent, with_processes=pausing is not None),
        selection,
        within=within,
        clock=agent.clock,
        pausing=pausing,
    )
    async for progress in steps:
        message = delivery_message(agent.store.generation, progress, agent.policies.now)
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
