"""The page of a bundle: on loopback, read-only, at the bundle's time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.errors import BundleError, StateError
from penstock.agent.page import PageServer, PageSource
from penstock.agent.server import TcpAddress
from penstock.agent.server.page_options import PageSettings

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from penstock.agent.admin.service import AdminService
    from penstock.agent.evidence.served import BundleServer

_HOST = "127.0.0.1"


def serve_page(
    server: BundleServer, name: str, program: str, *, port: int = 0, since: float | None = None
) -> str:
    """Serve the page until *server* closes.

    Args:
        server: of the bundle.
        name: of the bundle, for people.
        program: the beginning of a command line of agentctl that reads the bundle.
        port: of loopback; 0 for a free one.
        since: seconds before the bundle that the verdict is about; None for those of ``agentctl diagnose``.

    Returns:
        Its address for a browser.

    Raises:
        BundleError: the port cannot be bound.

    """
    settings = PageSettings(
        TcpAddress(_HOST, port), write=False, user_header="", tls=None, allow=None, hosts=()
    )
    source = PageSource("bundle", name, clock=lambda: server.now, program=program, since=since)

    async def start(service: AdminService, parts: AsyncExitStack) -> str:
        page = PageServer(settings, service, source)
        try:
            await page.start()
        except StateError as error:
            raise BundleError(
                f"port {port} of {_HOST} cannot be bound; give another --port, or leave it out for a free one"
            ) from error
        parts.push_async_callback(page.stop)
        return page.url

    return server.add(start)
