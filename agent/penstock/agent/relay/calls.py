"""Calls of a relay's service: how many at a time, and their responses as bytes, made beside the loop."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, Final

import grpc
from penstock.agent.relay.fleet import takes_long
from penstock.agent.relay.large_answers import Room
from penstock.agent.server.grpc_server import MAX_SEND_BYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.agent.relay.large_answers import LargeAnswers

_SERVICE: Final = "/penstock.v1.Admin/"
# Calls at a time, and as many again of those that take long; the others wait for their turn.
_MAX_CALLS: Final = 32
_MAX_WAITING: Final = 256
# Responses that are sent: a caller may read slowly.
_MAX_SENT_BYTES: Final = 128 << 20
_BUSY: Final = f"{_MAX_WAITING} calls wait at this relay; try again"
_UNREAD: Final = f"callers have {_MAX_SENT_BYTES >> 20} MiB of this relay's responses to read; try again"


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
