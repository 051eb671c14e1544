"""Authorization of the admin service: allowed methods by role, and the author of a change."""

from __future__ import annotations

import inspect
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import grpc
from penstock.agent.errors import AccessError, ContractError
from penstock.agent.server import LOCAL, Role
from penstock.agent.server.grpc_server import decode_request
from penstock.agent.server.status_codes import abort_with

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from penstock.agent.server import AllowList, Caller

SERVICE = "/penstock.v1.Admin/"
# Read-only methods. All others, unknown ones included, need the role write.
READING = frozenset(
    {
        "GetStatus",
        "ListPolicies",
        "GetEffectivePolicy",
        "ListAudit",
        "WatchRollout",
        "ExportPolicies",
        "ListEngines",
        "ListPeers",
        "ListPairs",
        "GetSignals",
        "ListRequests",
        "ListHolders",
        "ListSuspects",
        "ListEvents",
        "WatchEvents",
        "GetTrace",
        "Explain",
        "Diagnose",
        "WhatIf",
        "GetBill",
        "ListQuarantines",
        "ListEjections",
        "ListDrills",
        "ListPolicyRollouts",
        "GetBundle",
        "IssuePageToken",
    }
)


class AccessInterceptor(grpc.aio.ServerInterceptor):
    """Admits callers by method and role; the author of a request is what the connection proves."""

    def __init__(self, allowed: AllowList | None) -> None:
        """Check callers against *allowed*; None (the unix socket) allows everything."""
        self._allowed = allowed

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Check before the request is parsed. Other services (health) are not checked."""
        handler = await continuation(handler_call_details)
        path = handler_call_details.method
        if handler is None or not path.startswith(SERVICE):
            return handler
        method = path.removeprefix(SERVICE)
        if handler.response_streaming:
            return handler._replace(request_deserializer=None, unary_stream=self._stream(method, handler))
        return handler._replace(request_deserializer=None, unary_unary=self._unary(method, handler))

    def _unary(self, method: str, handler: Any) -> Any:
        call = handler.unary_unary

        async def checked(body: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            request = await self._admit(method, handler, body, context)
            if not inspect.iscoroutinefunction(call):
                await _abort_missing(method, context)
            return await call(request, context)

        return checked

    def _stream(self, method: str, handler: Any) -> Any:
        call = handler.unary_stream

        async def checked(body: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            request = await self._admit(method, handler, body, context)
            if not inspect.isasyncgenfunction(call):
                await _abort_missing(method, context)
            async with aclosing(call(request, context)) as responses:
                async for response in responses:
                    yield response

        return checked

    async def _admit(
        self, method: str, handler: Any, body: bytes, context: grpc.aio.ServicerContext[Any, Any]
    ) -> Any:
        """Return the request of an authorized caller, with the author and the role that the connection proves."""
        try:
            caller = LOCAL if self._allowed is None else _proven(self._allowed, context)
            _require(caller, method)
            request = decode_request(handler, body)
            if "author" in request.DESCRIPTOR.fields_by_name:
                request.author = caller.author(request.author)
            if "page_role" in request.DESCRIPTOR.fields_by_name:
                request.page_role = caller.page_role(request.page_role)
        except (AccessError, ContractError) as error:
            await abort_with(context, error)
        return request


def _proven(allowed: AllowList, context: grpc.aio.ServicerContext[Any, Any]) -> Caller:
    # Imported here: an agent without TCP needs no certificates.
    from penstock.agent.server.tls import client_names  # noqa: PLC0415

    return allowed.admit(client_names(context.auth_context()))


async def _abort_missing(method: str, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """End a call of a method that only the generated base has: a plain function, which would raise."""
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"this agent has no {method}")


def _require(caller: Caller, method: str) -> None:
    needed = Role.READ if method in READING else Role.WRITE
    if caller.role < needed:
        raise AccessError(
            f"{caller.name!r} has read access, {method} needs write access; "
            f"start penstock-agent with --admin-allow {caller.name}=write to grant it"
        )
