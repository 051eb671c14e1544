"""The ``PolicyFeed`` service: one task a stream, so that a hung engine holds nobody else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import structlog
from penstock.agent.errors import ContractError, PenstockError
from penstock.agent.status import code_of
from penstock.proto.v1 import policy_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.agent.policy.feed import PolicyFeed
    from penstock.agent.policy.subscriber import Subscriber
    from penstock.proto.v1.policy_pb2 import Push, Report

    Context = grpc.aio.ServicerContext[Report, Push]

# How long a subscriber may take to say who it is.
_HELLO_DEADLINE = 10.0

_log = structlog.get_logger(__name__)


class PolicyFeedService(policy_pb2_grpc.PolicyFeedServicer):
    """Carries pushes and answers between a feed and its engines."""

    def __init__(self, feed: PolicyFeed) -> None:
        self._feed = feed

    async def Watch(self, request_iterator: AsyncIterator[Report], context: Context) -> AsyncIterator[Push]:  # noqa: N802
        """Serve one EngineCore until either side ends the stream."""
        try:
            subscriber = await self._enter(request_iterator)
        except PenstockError as error:
            await context.abort(code_of(error), str(error))
        reader = asyncio.ensure_future(self._read(subscriber, request_iterator))
        log = _log.bind(engine=str(subscriber.target.key))
        log.info("engine subscribed", hash_in_force=subscriber.hash_in_force)
        try:
            async for push in self._pushes(subscriber, reader):
                yield push
        finally:
            self._feed.leave(subscriber)
            log.info("engine left the policy feed")
            reader.cancel()
            await asyncio.wait([reader])
            broken = None if reader.cancelled() else reader.exception()
        if isinstance(broken, PenstockError):
            await context.abort(code_of(broken), str(broken))
        if not self._feed.holds(subscriber):
            await context.abort(grpc.StatusCode.ABORTED, "a newer stream of the same engine took over")

    async def _enter(self, reports: AsyncIterator[Report]) -> Subscriber:
        try:
            first = await asyncio.wait_for(anext(reports), _HELLO_DEADLINE)
        except (TimeoutError, StopAsyncIteration):
            raise ContractError("no Subscribe came; send one first") from None
        if first.WhichOneof("message") != "subscribe":
            raise ContractError(f"the first report is {first.WhichOneof('message')}; send Subscribe first")
        return self._feed.enter(first.subscribe)

    async def _pushes(self, subscriber: Subscriber, reader: asyncio.Future[None]) -> AsyncIterator[Push]:
        while not (self._feed.closing or reader.done()) and self._feed.holds(subscriber):
            seen = subscriber.wake.version
            push = self._feed.next_push(subscriber)
            if push is None:
                await subscriber.wake.wait(seen, self._feed.pause(subscriber))
            else:
                yield push

    async def _read(self, subscriber: Subscriber, reports: AsyncIterator[Report]) -> None:
        try:
            async for report in reports:
                self._feed.take(subscriber, report)
        finally:
            subscriber.wake.notify()
