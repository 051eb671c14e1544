"""The ``Admin`` service of a relay: each call asks all agents, and says who did not answer."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import grpc
from penstock.agent.errors import ContractError
from penstock.agent.relay.asking import Context, author_at_agents
from penstock.agent.relay.changing import ChangingCalls
from penstock.agent.relay.reading import ReadingCalls
from penstock.agent.relay.requests import which_agent
from penstock.agent.relay.streams import MAX_WATCHES, EventStream, follow_deliveries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.proto.v1 import admin_pb2 as admin


class RelayService(ReadingCalls, ChangingCalls):
    """The methods of ``penstock.v1.Admin`` for all agents of a fleet."""

    async def WatchRollout(  # noqa: N802
        self, request: admin.WatchRolloutRequest, _context: Context
    ) -> AsyncIterator[admin.Rollout]:
        """Stream the progress of all agents: of a write to the source, or what it is now."""
        # Each agent counts its own generations.
        request.store_generation = 0
        async for progress in follow_deliveries(self._fleet, "WatchRollout", request):
            yield progress

    async def SetPaused(  # noqa: N802
        self, request: admin.SetPausedRequest, context: Context
    ) -> AsyncIterator[admin.Rollout]:
        """Pause or resume the engines of all agents, and stream the progress."""
        request.author = author_at_agents(request.author)
        reached = False
        async for progress in follow_deliveries(self._fleet, "SetPaused", request):
            reached = True
            yield progress
        if not reached:
            await self._abort_without_engines(context, request)

    async def WatchEvents(  # noqa: N802
        self, request: admin.ListEventsRequest, context: Context
    ) -> AsyncIterator[admin.LoggedEvent]:
        """Follow the logs of all agents until the caller ends."""
        if request.HasField("after_batch"):
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                "a relay follows several logs: give after_agents instead of after_batch; upgrade agentctl",
            )
        if self._watching >= MAX_WATCHES:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{MAX_WATCHES} callers watch at this relay; end one, or watch one agent by its own address",
            )
        self._watching += 1
        try:
            async with aclosing(EventStream(self._fleet, request).events()) as events:
                async for event in events:
                    yield event
        finally:
            self._watching -= 1

    async def GetBundle(  # noqa: N802
        self, request: admin.GetBundleRequest, context: Context
    ) -> AsyncIterator[admin.BundlePart]:
        """Pass on the bundle of the agent that the request names, or of the only one."""
        agents = {agent.place.name: agent for agent in self._fleet.agents()}
        agent = (
            agents.get(request.agent) if request.agent or len(agents) != 1 else next(iter(agents.values()))
        )
        if agent is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, which_agent(request.agent, agents))
        request.agent = ""
        try:
            async with aclosing(agent.stream("GetBundle", request)) as parts:
                async for part in parts:
                    yield part
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), f"{agent.place.name}: {agent.sentence(error)}")
        except ContractError as error:
            await context.abort(grpc.StatusCode.INTERNAL, f"{agent.place.name}: {error}")
