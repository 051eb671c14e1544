"""The trace backend's address, as OTLP writes it, and what each protocol makes of it."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

TRACES_PATH = "/v1/traces"

_EXPECTED = {
    "grpc": "http://host:port, https://host:port or unix:///path",
    "http/protobuf": "http://host:port/path or https://host:port/path",
}
_PORTS = {"http": 80, "https": 443}


class GrpcTarget(NamedTuple):
    """Where gRPC connects to, and whether over TLS."""

    target: str
    secure: bool


def shown(endpoint: str) -> str:
    """Return the endpoint as people may see it: without the user and the password that a URL can hold."""
    scheme, separator, rest = endpoint.rpartition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}{separator}{place.rpartition('@')[2]}{slash}{path}"


def check(endpoint: str, protocol: str) -> None:
    """Check the syntax.

    Raises:
        ValueError: what was expected.

    """
    if protocol == "grpc":
        grpc_target(endpoint, insecure=None)
    else:
        http_url(endpoint)


def grpc_target(endpoint: str, *, insecure: bool | None) -> GrpcTarget:
    """Return where gRPC connects to: ``http`` is without TLS, ``https`` with it.

    Without a scheme it is as *insecure* (``OTEL_EXPORTER_OTLP_INSECURE``) says, and with TLS if that says nothing.

    Raises:
        ValueError: what was expected.

    """
    if endpoint.startswith("unix:"):
        if not endpoint.removeprefix("unix:").removeprefix("//").startswith("/"):
            raise ValueError(f"expected {_EXPECTED['grpc']}")
        return GrpcTarget(endpoint, secure=False)
    has_scheme = "://" in endpoint
    parts = _split(endpoint if has_scheme else f"//{endpoint}", "grpc")
    if parts.scheme not in ("", "http", "https") or (not has_scheme and parts.path):
        raise ValueError(f"expected {_EXPECTED['grpc']}")
    secure = parts.scheme == "https" or (not has_scheme and not insecure)
    port = parts.port or _PORTS[parts.scheme or ("https" if secure else "http")]
    host = parts.hostname or ""
    return GrpcTarget(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", secure)


def http_url(endpoint: str) -> str:
    """Return the URL, which is used as it is.

    Raises:
        ValueError: what was expected.

    """
    if _split(endpoint, "http/protobuf").scheme not in _PORTS:
        raise ValueError(f"expected {_EXPECTED['http/protobuf']}")
    return endpoint


def _split(url: str, protocol: str) -> SplitResult:
    expected = ValueError(f"expected {_EXPECTED[protocol]}")
    if any(character.isspace() or not character.isprintable() for character in url):
        raise expected
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise expected from None
    if not parts.hostname or port == 0 or parts.query or parts.fragment:
        raise expected
    return parts
