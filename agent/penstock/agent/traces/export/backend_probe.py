"""Checks whether the trace backend accepts connections, for ``agentctl doctor``, before the first span is sent."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from penstock.agent.traces.export.otlp_config import grpc_target

if TYPE_CHECKING:
    from penstock.agent.traces.export.otlp_config import ExportSettings

_TIMEOUT = 2.0
_PORTS = {"http": 80, "https": 443}


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
        async with asyncio.timeout(_TIMEOUT):
            _, writer = (
                await asyncio.open_unix_connection(f"/{path.lstrip('/')}")
                if path
                else await asyncio.open_connection(host, parts.port or _PORTS[parts.scheme])
            )
    except TimeoutError:
        return f"it takes no connection within {_TIMEOUT:g} s"
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
