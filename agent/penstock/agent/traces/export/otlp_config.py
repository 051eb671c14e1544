"""OpenTelemetry's ``OTEL_*`` variables of the trace export: endpoint, protocol, headers, certificates."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from penstock.agent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

PROTOCOLS: Final = ("grpc", "http/protobuf")
DEFAULT_TIMEOUT: Final = 10.0
_HEADERS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
# Stricter than OpenTelemetry's parser, which logs a wrong header, secrets included, and goes on without it.
_HEADER = re.compile(r"\s*[-!#$%&'*+.^_`|~0-9A-Za-z]+\s*=[\t !#-+\--:<-\[\]-~]*")
# The variable is in milliseconds; some SDKs read it as seconds, which would show in a time-out of 10 ms.
_MIN_TIMEOUT, _MAX_TIMEOUT = 100, 600_000
_COMPRESSIONS = ("none", "gzip")
_TRACES_PATH = "/v1/traces"
_PORTS = {"http": 80, "https": 443}
_EXPECTED_ENDPOINT = {
    "grpc": "http://host:port, https://host:port or unix:///path",
    "http/protobuf": "http://host:port/path or https://host:port/path",
}


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """Configuration of the trace export.

    Attributes:
        endpoint: empty if there is no export: none is configured, or it is switched off
            (``OTEL_TRACES_EXPORTER=none``, ``OTEL_SDK_DISABLED=true``).
        protocol: ``grpc`` or ``http/protobuf``.
        service_name: ``OTEL_SERVICE_NAME``; empty for a name by the engine's role.
        headers: as in the variable; may contain secrets.
        timeout: of one call, in seconds.
        insecure: no TLS for a gRPC endpoint without a scheme; None if the variable is not set.
        certificate: path of the trusted certificates; empty for the system's.
        client_certificate, client_key: paths of the client's; empty for none.

    """

    endpoint: str = ""
    protocol: str = "grpc"
    service_name: str = ""
    headers: str = field(default="", repr=False)
    timeout: float = DEFAULT_TIMEOUT
    gzip: bool = False
    insecure: bool | None = None
    certificate: str = ""
    client_certificate: str = ""
    client_key: str = ""

    @property
    def shown_endpoint(self) -> str:
        """The endpoint without user and password."""
        return redacted(self.endpoint)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ExportSettings:
        """Read the settings; ``OTEL_EXPORTER_OTLP_TRACES_*`` wins over ``OTEL_EXPORTER_OTLP_*``.

        Raises:
            ConfigError: one sentence that names the variable and what was expected.

        """

        def value(name: str) -> tuple[str, str]:
            names = (f"OTEL_EXPORTER_OTLP_TRACES_{name}", f"OTEL_EXPORTER_OTLP_{name}")
            return next(
                ((variable, environment[variable]) for variable in names if environment.get(variable)),
                (names[-1], ""),
            )

        exporter = environment.get("OTEL_TRACES_EXPORTER", "") or "otlp"
        if exporter not in ("otlp", "none"):
            raise ConfigError(f"OTEL_TRACES_EXPORTER {exporter!r} is wrong: expected otlp or none")
        for name in _HEADERS:
            _check_headers(name, environment.get(name, ""))
        protocol = _one_of(value("PROTOCOL"), PROTOCOLS)
        disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
        return cls(
            endpoint="" if disabled or exporter == "none" else _endpoint(value("ENDPOINT"), protocol),
            protocol=protocol,
            service_name=environment.get("OTEL_SERVICE_NAME", ""),
            headers=value("HEADERS")[1],
            timeout=_timeout(value("TIMEOUT")),
            gzip=_one_of(value("COMPRESSION"), _COMPRESSIONS) == "gzip",
            insecure={"true": True, "false": False}.get(value("INSECURE")[1].strip().lower()),
            certificate=value("CERTIFICATE")[1],
            client_certificate=value("CLIENT_CERTIFICATE")[1],
            client_key=value("CLIENT_KEY")[1],
        )


class GrpcTarget(NamedTuple):
    """A gRPC target, and whether it is reached over TLS."""

    target: str
    secure: bool


def redacted(endpoint: str) -> str:
    """Return the endpoint without the user and the password that a URL can hold."""
    scheme, separator, rest = endpoint.rpartition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}{separator}{place.rpartition('@')[2]}{slash}{path}"


def grpc_target(endpoint: str, *, insecure: bool | None) -> GrpcTarget:
    """Return the gRPC target of *endpoint*: without TLS for ``http``, with TLS for ``https``.

    Without a scheme *insecure* (``OTEL_EXPORTER_OTLP_INSECURE``) decides; None means TLS.

    Raises:
        ValueError: what was expected.

    """
    if endpoint.startswith("unix:"):
        if not endpoint.removeprefix("unix:").removeprefix("//").startswith("/"):
            raise ValueError(f"expected {_EXPECTED_ENDPOINT['grpc']}")
        return GrpcTarget(endpoint, secure=False)
    has_scheme = "://" in endpoint
    parts = _split(endpoint if has_scheme else f"//{endpoint}", "grpc")
    if parts.scheme not in ("", "http", "https") or (not has_scheme and parts.path):
        raise ValueError(f"expected {_EXPECTED_ENDPOINT['grpc']}")
    secure = parts.scheme == "https" or (not has_scheme and not insecure)
    port = parts.port or _PORTS[parts.scheme or ("https" if secure else "http")]
    host = parts.hostname or ""
    return GrpcTarget(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", secure)


def http_url(endpoint: str) -> str:
    """Return *endpoint*, which is used unchanged.

    Raises:
        ValueError: what was expected.

    """
    if _split(endpoint, "http/protobuf").scheme not in _PORTS:
        raise ValueError(f"expected {_EXPECTED_ENDPOINT['http/protobuf']}")
    return endpoint


def _endpoint(found: tuple[str, str], protocol: str) -> str:
    variable, text = found
    if not text:
        return ""
    try:
        _check_endpoint(text, protocol)
    except ValueError as error:
        raise ConfigError(f"{variable} {redacted(text)!r} is wrong for {protocol}: {error}") from error
    if protocol != "grpc" and "TRACES" not in variable:
        return text.rstrip("/") + _TRACES_PATH
    return text


def _one_of(found: tuple[str, str], words: tuple[str, ...]) -> str:
    variable, text = found
    if text and text not in words:
        raise ConfigError(f"{variable} {text!r} is wrong: expected one of {', '.join(words)}")
    return text or words[0]


def _timeout(found: tuple[str, str]) -> float:
    variable, text = found
    if not text:
        return DEFAULT_TIMEOUT
    milliseconds = int(text) if text.isascii() and text.isdigit() else 0
    if not _MIN_TIMEOUT <= milliseconds <= _MAX_TIMEOUT:
        raise ConfigError(
            f"{variable} {text!r} is wrong: expected milliseconds, from {_MIN_TIMEOUT} to {_MAX_TIMEOUT}"
        )
    return milliseconds / 1000


def _check_headers(variable: str, text: str) -> None:
    for number, part in enumerate(text.split(","), 1):
        if part.strip() and _HEADER.fullmatch(part) is None:
            raise ConfigError(
                f"{variable} is wrong in part {number} (not shown, it may be secret):"
                " expected name=value,name=value with URL-encoded values"
            )


def _check_endpoint(endpoint: str, protocol: str) -> None:
    if protocol == "grpc":
        grpc_target(endpoint, insecure=None)
    else:
        http_url(endpoint)


def _split(url: str, protocol: str) -> SplitResult:
    expected = ValueError(f"expected {_EXPECTED_ENDPOINT[protocol]}")
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
