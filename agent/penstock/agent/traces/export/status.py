"""State of the trace export, and whether its backend accepts connections: for ``agentctl doctor``, before the first span is sent."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from penstock.agent.traces.export.otlp_config import grpc_target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.agent.traces.export.otlp_config import ExportSettings

_TIMEOUT_SECONDS = 2.0
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class ExportStatus:
    """State of the trace export.

    Attributes:
        endpoint: empty if there is no export.
        error: why spans cannot be delivered at present; empty while all is well.
        low: the oldest batch of the log that the export still needs.
        exported: the last closing batch whose spans were all delivered.
        position: the last batch that was read.
        oldest_unexported_unix_nano: when the oldest batch with undelivered spans was received; 0 if there is none.
        spans_exported: since the agent's start.
        spans_refused: dropped because the backend refuses them.
        spans_sampled_out: left out by the sampling.
        skipped: requests, batches or parts of them without spans because of an internal error.
        given_up: requests whose spans were finished before their end, by the limit that they exceeded: ``age``,
            ``count`` or ``memory``.

    """

    endpoint: str = ""
    error: str = ""
    low: int = 0
    exported: int = 0
    position: int = 0
    oldest_unexported_unix_nano: int = 0
    spans_exported: int = 0
    spans_refused: int = 0
    spans_sampled_out: int = 0
    skipped: int = 0
    given_up: Mapping[str, int] = field(default_factory=dict)


async def probe_endpoint(settings: ExportSettings) -> str:
    """Connect to the endpoint and close; returns why that failed, empty if it succeeded or a proxy is configured.

    Takes two seconds at most.
    """
    if settings.protocol == "grpc":
        target, secure = grpc_target(settings.endpoint, insecure=settings.insecure)
        parts = urlsplit(f"{'https' if secure else 'http'}://{target}")
        path = target.removeprefix("unix:") if target.startswith("unix:") else ""
    else:
        parts, path = urlsplit(settings.endpoint), ""
    host = parts.hostname or ""
    if not path and _has_proxy(parts.scheme, host):
        return ""
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            _, writer = (
                await asyncio.open_unix_connection(f"/{path.lstrip('/')}")
                if path
                else await asyncio.open_connection(host, parts.port or _PORTS[parts.scheme])
            )
    except TimeoutError:
        return f"it takes no connection within {_TIMEOUT_SECONDS:g} s"
    except (ConnectionRefusedError, FileNotFoundError):
        return "nothing listens there"
    except socket.gaierror as error:
        return f"{host} has no address: {error.strerror}"
    except OSError as error:
        return f"no connection: {os.strerror(error.errno) if error.errno else error}"
    writer.close()
    return ""


def _has_proxy(scheme: str, host: str) -> bool:
    proxies = getproxies()
    return any(proxies.get(name) for name in (scheme, "grpc", "all")) and not proxy_bypass(host)
