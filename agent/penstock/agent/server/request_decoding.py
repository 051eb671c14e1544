"""Requests are parsed inside the handler: what cannot be is the caller's mistake, and answered as one.

gRPC by itself parses a request before any check, and ends the call with UNKNOWN and a traceback in the log.
"""

from __future__ import annotations

import inspect
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError
from penstock.agent.errors import ContractError
from penstock.agent.server.status_codes import abort_with

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def decode_request(handler: Any, body: bytes) -> Any:
    """Return the request of a call to *handler*, with the deserializer that the generated code gave it.

    Raises:
        ContractError: it is something else.

    """
    parse = handler.request_deserializer
    try:
        return parse(body)
    except DecodeError as error:
        name = parse.__self__.DESCRIPTOR.full_name
        raise ContractError(
            f"the request is not a {name}; send one as the .proto files of the agent's version say"
        ) from error


class DecodeInterceptor(grpc.aio.ServerInterceptor):
    """Parses the requests of all services, but of those that take bytes."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Parse the request before the method."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None or handler.request_streaming:
            return handler
        if handler.response_streaming:
            return handler._replace(request_deserializer=None, unary_stream=_stream(handler))
        return handler._replace(request_deserializer=None, unary_unary=_unary(handler))


def _unary(handler: Any) -> Any:
    async def decoded(body: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        return await handler.unary_unary(await _request(handler, body, context), context)

    return decoded


def _stream(handler: Any) -> Any:
    call = handler.unary_stream

    async def decoded(body: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        request = await _request(handler, body, context)
        if not inspect.isasyncgenfunction(call):
            # It writes by itself.
            await call(request, context)
            return
        async with aclosing(call(request, context)) as responses:
            async for response in responses:
                await context.write(response)

    return decoded


async def _request(handler: Any, body: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
    try:
        return decode_request(handler, body)
    except ContractError as error:
        await abort_with(context, error)
