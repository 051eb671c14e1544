"""The page of a recorded incident, as ``agentctl page --since WINDOW --bundle FILE`` serves it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.agent.evidence.served import BundleServer, serve_page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.incidents.table import Incident


@contextmanager
def bundle_page(incident: Incident) -> Iterator[str]:
    """Serve the page and give its address, without the slash at its end."""
    name = incident.path.name
    server = BundleServer(incident.path)
    try:
        seconds = float(incident.window.removesuffix("s"))
        yield serve_page(server, name, f"agentctl --bundle {name}", since=seconds).rstrip("/")
    finally:
        server.close()
