"""The gRPC servers of the daemon: engines on one address, the admin service on several."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from penstock.agent.admin.authorization import AccessInterceptor
from penstock.agent.admin.service import AdminService
from penstock.agent.page import PageServer, PageSource
from penstock.agent.server import TcpAddress
from penstock.agent.server.grpc_server import GrpcServer
from penstock.agent.server.tls import Certificates
from penstock.proto.v1 import admin_pb2_grpc

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from penstock.agent.admin.lookups import AgentContext
    from penstock.agent.daemon.config import Config
    from penstock.agent.daemon.drain_deadline import DrainDeadline
    from penstock.agent.ingest import IngestService
    from penstock.agent.policy.distribution import PolicyFeedService

_INGEST_MODE = 0o660
_ADMIN_MODE = 0o600
# Part of the drain's deadline, for open calls.
_LAST_CALLS_SECONDS = 1.0


class Servers:
    """Starts the servers; each registers its own stop with *parts*."""

    def __init__(self, config: Config, parts: AsyncExitStack, deadline: DrainDeadline) -> None:
        self._config = config
        self._parts = parts
        self._deadline = deadline

    async def serve_admin(self, context: AgentContext) -> dict[str, str]:
        """Serve the admin service at every address: unix sockets by file mode, TCP by the list of names; and the page.

        Returns:
            The addresses, as ``admin``, ``admin_tcp`` and ``page``.

        """
        service = AdminService(context)
        tls = self._config.admin_tls
        addresses = {}
        for address in self._config.admin_listen:
            over_tls = tls if isinstance(address, TcpAddress) else None
            server = GrpcServer(
                address,
                "--admin-listen",
                _ADMIN_MODE,
                credentials=Certificates(over_tls).credentials() if over_tls else None,
                interceptors=[AccessInterceptor(over_tls.allow if over_tls else None)],
            )
            admin_pb2_grpc.add_AdminServicer_to_server(service, server.server)  # type: ignore[no-untyped-call]
            await self._start(server)
            addresses["admin_tcp" if over_tls else "admin"] = str(server.address)
        self._parts.callback(service.close)
        if self._config.page is not None:
            source = PageSource("agent", socket.gethostname())
            page = PageServer(self._config.page, service, source, context.page)
            self._parts.push_async_callback(page.stop)
            addresses |= await page.serve_if_free()
        return addresses

    async def serve_engines(self, ingest: IngestService, feed_service: PolicyFeedService) -> GrpcServer:
        """Serve ingest and the policy feed on one endpoint."""
        server = GrpcServer(self._config.listen, "--listen", _INGEST_MODE)
        server.server.add_generic_rpc_handlers((ingest.handler(), feed_service.handler()))
        await self._start(server)
        return server

    async def _start(self, server: GrpcServer) -> None:
        self._parts.push_async_callback(
            lambda: server.stop(min(_LAST_CALLS_SECONDS, self._deadline.remaining()))
        )
        await server.start()
