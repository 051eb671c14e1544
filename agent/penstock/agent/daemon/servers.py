"""The gRPC servers of the daemon: engines on one address, the admin service on several.

The deadline that all parts of a stop share, and ``addresses.json``: where the running agent listens.
"""

from __future__ import annotations

import json
import os
import socket
import time
from functools import partial
from typing import TYPE_CHECKING

import structlog
from penstock.agent.admin.authorization import AccessInterceptor
from penstock.agent.admin.calls import diagnoses
from penstock.agent.admin.router_feed import RouterFeed
from penstock.agent.admin.service import AdminService
from penstock.agent.page import PageServer, PageSource
from penstock.agent.server import TcpAddress
from penstock.agent.server.feed_server import FeedServer
from penstock.agent.server.grpc_server import GrpcServer
from penstock.agent.server.tls import Certificates
from penstock.agent.state import file_identity
from penstock.proto.v1 import admin_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AsyncExitStack
    from pathlib import Path

    from penstock.agent.admin.lookups import AgentContext
    from penstock.agent.daemon.config import Config
    from penstock.agent.ingest import IngestService
    from penstock.agent.policy.distribution import PolicyFeedService

_INGEST_MODE = 0o660
_ADMIN_MODE = 0o600
# Part of the drain's deadline, for open calls.
_LAST_CALLS_SECONDS = 1.0


_log = structlog.get_logger(__name__)
_ADDRESSES = "addresses.json"

_LEAST_DRAIN_SECONDS = 0.1


class Servers:
    """Starts the servers; each registers its own stop with *parts*."""

    def __init__(self, config: Config, parts: AsyncExitStack, deadline: DrainDeadline) -> None:
        self._config = config
        self._parts = parts
        self._deadline = deadline

    async def serve_admin(self, context: AgentContext) -> dict[str, str]:
        """Serve the admin service at every address: unix sockets by file mode, TCP by the list of names; the page, and the feed.

        Returns:
            The addresses, as ``admin``, ``admin_tcp``, ``page`` and ``feed``.

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
        if self._config.feed is not None:
            feed = FeedServer(
                self._config.feed, RouterFeed(service, partial(diagnoses.judgement, context)).content
            )
            self._parts.push_async_callback(feed.stop)
            await feed.start()
            addresses["feed"] = feed.url
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


def remove_addresses(state_dir: Path) -> None:
    """Remove the file of an agent that was killed."""
    state_dir.joinpath(_ADDRESSES).unlink(missing_ok=True)


def write_addresses(state_dir: Path, addresses: Mapping[str, str]) -> Callable[[], None]:
    """Write the file for its owner alone; returns what removes it. A full disk is logged: the log has the addresses as well."""
    path = state_dir / _ADDRESSES
    written = path.with_suffix(".tmp")
    try:
        written.unlink(missing_ok=True)
        with open(written, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            json.dump({"pid": os.getpid(), **addresses}, file)
        written.replace(path)
    except OSError as error:
        _log.warning("addresses not written", path=str(path), error=str(error))
        return lambda: None
    ours = file_identity(path)

    def remove() -> None:
        # Another agent may have taken the directory and written its own.
        if file_identity(path) == ours:
            path.unlink(missing_ok=True)

    return remove


class DrainDeadline:
    """Seconds left for a stop; they run from :meth:`start` or the first question on."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._stop_at: float | None = None

    def start(self) -> float:
        """Start the clock if it does not run; return its end, of the monotonic clock."""
        if self._stop_at is None:
            self._stop_at = time.monotonic() + self._seconds
        return self._stop_at

    def remaining(self) -> float:
        """Return the seconds left, at least 0.1."""
        return max(_LEAST_DRAIN_SECONDS, self.start() - time.monotonic())
