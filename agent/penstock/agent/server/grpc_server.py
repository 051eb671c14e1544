"""gRPC servers: one owner a socket, file permissions, keepalive; requests are parsed inside the handler.

So what cannot be parsed is the caller's mistake, and answered as one: gRPC by itself parses a request before any check, and
ends the call with UNKNOWN and a traceback in the log.
"""

from __future__ import annotations

import inspect
import os
import resource
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse  # type: ignore[import-untyped]
from penstock.agent.errors import ContractError, StateError
from penstock.agent.server.addresses import Address, TcpAddress, UnixAddress
from penstock.agent.server.status_codes import abort_with
from penstock.agent.state import Lock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path


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


# The ingest's own check answers with a sentence up to here; gRPC itself refuses what is larger.
_MAX_RECEIVE_BYTES = 2 << 20
MAX_SEND_BYTES = 16 << 20
"""Maximum size of a response."""
_MAX_CONNECTIONS = 2_048
# Calls that are open, over all connections: two for each of as many sources as are taken in. Each holds a task and
# perhaps a message, before anybody has looked at what it says.
_MAX_CALLS = 2_048
# No service has a longer name, and the health service keeps what it is asked for.
_MAX_SERVICE_NAME = 256
# A file for each connection, and some for the state; many systems give 1,024 unless one asks for more.
_FILES = 4_096
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", _MAX_RECEIVE_BYTES),
    ("grpc.max_send_message_length", MAX_SEND_BYTES),
    ("grpc.max_concurrent_streams", 4_096),
    # Two for each of some hundred processes, and scrapers of health; each costs memory before it says a word.
    ("grpc.max_allowed_incoming_connections", _MAX_CONNECTIONS),
    # From the connection, over TLS too, to HTTP/2's first frame; the default is two minutes.
    ("grpc.server_handshake_timeout_ms", 5_000),
    # A connection without a call: engines have one always.
    ("grpc.max_connection_idle_ms", 60_000),
    # What is received ahead of its reader, for each stream; by itself that grows to megabytes.
    ("grpc.http2.bdp_probe", 0),
    # Only "identity": nothing that swells is unpacked.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    # Two servers on one port would each get half of the engines.
    ("grpc.so_reuseport", 0),
    # A peer that has stopped is noticed within 5 seconds: 2 of silence, 3 without an answer.
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Without it a stopped peer is noticed only after a minute.
    ("grpc.http2.ping_timeout_ms", 3_000),
    # Engines ping as often: never answer that with GOAWAY.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
]
# Which of them are the times of silence.
_SILENCE = ("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")


def raise_file_limit() -> None:
    """Raise the limit of open files to what the connections may need, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Health(health.aio.HealthServicer):  # type: ignore[misc]
    """The health service, which keeps no texts of clients."""

    async def Watch(self, request: HealthCheckRequest, context: Any) -> None:  # noqa: N802
        if len(request.service) > _MAX_SERVICE_NAME:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no service has such a name")
        await super().Watch(request, context)


class GrpcServer:
    """A server with the health service, on one address.

    Attributes:
        address: the real one, once :meth:`start` has returned.

    """

    def __init__(
        self,
        address: Address,
        flag: str,
        mode: int,
        *,
        credentials: grpc.ServerCredentials | None = None,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        patience: float = 1.0,
    ) -> None:
        """Prepare it.

        Args:
            flag: the option that gave the address, for errors.
            mode: permissions of a unix socket.
            credentials: of a TCP address with TLS.
            patience: how many times as long as an engine a client may be silent before its connection ends.

        """
        options = dict(_OPTIONS) | {name: int(dict(_OPTIONS)[name] * patience) for name in _SILENCE}
        self.server = grpc.aio.server(
            options=list(options.items()),
            # Outside of the others: what they have parsed themselves it leaves alone.
            interceptors=[DecodeInterceptor(), *interceptors],
            maximum_concurrent_rpcs=_MAX_CALLS,
        )
        self.address = address
        self._flag = flag
        self._mode = mode
        self._credentials = credentials
        self._lock: Lock | None = None
        self._health = _Health()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)

    async def start(self) -> None:
        """Bind and serve.

        Raises:
            StateError: the address is taken or cannot be bound.

        """
        if isinstance(self.address, UnixAddress):
            path = self.address.path
            # A second server can bind the path of a live socket: the lock is what keeps it away.
            self._lock = Lock(path.with_name(path.name + ".lock"), f"{self._flag} {self.address}")
            self._bind_unix(path)
        else:
            port = self._bind(str(self.address))
            self.address = TcpAddress(self.address.host, port)
        await self.server.start()
        await self.set_serving(True)

    def _bind_unix(self, path: Path) -> None:
        # The permissions hold from the first moment on: nothing else makes files meanwhile.
        old = os.umask(0o777 & ~self._mode)
        try:
            self._bind(f"unix:{path}")
        finally:
            os.umask(old)

    def _bind(self, target: str) -> int:
        try:
            if self._credentials is not None:
                return self.server.add_secure_port(target, self._credentials)
            return self.server.add_insecure_port(target)
        except RuntimeError as error:
            raise StateError(
                f"{self._flag} {self.address} cannot be bound; it is taken, or its place cannot be written"
            ) from error

    async def set_serving(self, serving: bool) -> None:
        """Report the state to the health service's clients."""
        status = HealthCheckResponse.SERVING if serving else HealthCheckResponse.NOT_SERVING
        await self._health.set("", status)

    async def stop(self, grace: float) -> None:
        """Stop serving; open calls have *grace* seconds."""
        await self.server.stop(grace)
        if self._lock is not None:
            # Only the lock's owner: the socket may be another agent's.
            if isinstance(self.address, UnixAddress):
                self.address.path.unlink(missing_ok=True)
            self._lock.release()
            self._lock = None
