"""The ``Admin`` service of a relay: each call asks all agents, and says who did not answer.

How many calls at a time, and their responses as bytes, made beside the loop.
"""

from __future__ import annotations

import asyncio
import inspect
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import grpc
from penstock.agent.errors import ContractError
from penstock.agent.relay.asking import author_at_agents, which_agent
from penstock.agent.relay.changing_calls import ChangingCalls
from penstock.agent.relay.fleet import takes_long
from penstock.agent.relay.large_answers import Room
from penstock.agent.relay.merged_streams import MAX_WATCHES, EventStream, follow_deliveries
from penstock.agent.relay.reading_calls import ReadingCalls
from penstock.agent.server.grpc_server import MAX_SEND_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from penstock.agent.relay.large_answers import LargeAnswers
    from penstock.agent.server.status_codes import Call
    from penstock.proto.v1 import admin_pb2 as admin

_SERVICE: Final = "/penstock.v1.Admin/"
# Calls at a time, and as many again of those that take long; the others wait for their turn.
_MAX_CALLS: Final = 32
_MAX_WAITING: Final = 256
# Responses that are sent: a caller may read slowly.
_MAX_SENT_BYTES: Final = 128 << 20
_BUSY: Final = f"{_MAX_WAITING} calls wait at this relay; try again"
_UNREAD: Final = f"callers have {_MAX_SENT_BYTES >> 20} MiB of this relay's responses to read; try again"


class RelayService(ReadingCalls, ChangingCalls):
    """The methods of ``penstock.v1.Admin`` for all agents of a fleet."""

    async def WatchRollout(  # noqa: N802
        self, request: admin.WatchRolloutRequest, _context: Call
    ) -> AsyncIterator[admin.Rollout]:
        """Stream the progress of all agents: of a write to the source, or what it is now."""
        # Each agent counts its own generations.
        request.store_generation = 0
        async for progress in follow_deliveries(self._fleet, "WatchRollout", request):
            yield progress

    async def SetPaused(  # noqa: N802
        self, request: admin.SetPausedRequest, context: Call
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
        self, request: admin.ListEventsRequest, context: Call
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
        self, request: admin.GetBundleRequest, context: Call
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


class RelayCalls(grpc.aio.ServerInterceptor):
    """Bounds the calls without a stream of responses, over all servers of a relay; the loop's."""

    def __init__(self, large: LargeAnswers) -> None:
        """Let calls read *large* answers in turn."""
        self._large = large
        self._turns = {slow: asyncio.Semaphore(_MAX_CALLS) for slow in (False, True)}
        self._waiting = 0
        self._sent = Room(_MAX_SENT_BYTES)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap a method of the admin service; others, and those that stream, stay as they are."""
        handler = await continuation(handler_call_details)
        path = handler_call_details.method
        if handler is None or not path.startswith(_SERVICE) or handler.response_streaming:
            return handler
        if not inspect.iscoroutinefunction(handler.unary_unary):
            return handler
        slow = takes_long(path.removeprefix(_SERVICE))
        return handler._replace(response_serializer=None, unary_unary=self._unary(handler.unary_unary, slow))

    def _unary(self, call: Any, slow: bool) -> Any:
        async def bounded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
            if self._waiting >= _MAX_WAITING:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, _BUSY)
            self._waiting += 1
            try:
                await self._turns[slow].acquire()
            finally:
                self._waiting -= 1
            try:
                with self._large.calling():
                    return await self._body(await call(request, context), context)
            finally:
                self._turns[slow].release()

        return bounded

    async def _body(self, response: Any, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        """Return the bytes of *response*, which count until the caller has read them, or has left."""
        body: bytes = await asyncio.to_thread(response.SerializeToString)
        size = len(body)
        if size > MAX_SEND_BYTES:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"the response has {size >> 20} MiB, the limit is {MAX_SEND_BYTES >> 20}; narrow the request",
            )
        if not self._sent.take(size):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, _UNREAD)
        give: Any = lambda _: self._sent.give(size)  # noqa: E731
        context.add_done_callback(give)
        return body
