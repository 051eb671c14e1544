"""The settings of the trace export, from OpenTelemetry's ``OTEL_*`` variables."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from penstock.agent.errors import ConfigError
from penstock.agent.traces.export import otel_variables

if TYPE_CHECKING:
    from collections.abc import Mapping

PROTOCOLS: Final = ("grpc", "http/protobuf")
DEFAULT_TIMEOUT: Final = 10.0
"""Seconds of a call: OpenTelemetry's default."""
_HEADERS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
# Stricter than OpenTelemetry's parser, which logs a wrong header, secrets included, and goes on without it.
_HEADER = re.compile(r"\s*[-!#$%&'*+.^_`|~0-9A-Za-z]+\s*=[\t !#-+\--:<-\[\]-~]*")
# The variable is in milliseconds; some SDKs read it as seconds, which would show in a time-out of 10 ms.
_MIN_TIMEOUT, _MAX_TIMEOUT = 100, 600_000
_COMPRESSIONS = ("none", "gzip")
# OpenTelemetry's default; above that many spans a call comes near the 4 MiB that receivers of gRPC take.
_BATCH_SIZE, _MAX_BATCH_SIZE = 512, 4_096
# Milliseconds between two calls.
_MIN_DELAY, _MAX_DELAY = 100, 60_000
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
        sampler: OpenTelemetry's name of the sampler.
        sampler_ratio: its ratio, from 0 to 1; 1 for one that is always on.
        schedule_delay: ``OTEL_BSP_SCHEDULE_DELAY``: the pause at the end of the log, in seconds; None for a quarter.
        batch_size: ``OTEL_BSP_MAX_EXPORT_BATCH_SIZE``: spans in a call; one request's may be more.
        unused: a sentence for each ``OTEL_*`` variable that is set and has no effect.

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
    sampler: str = otel_variables.DEFAULT_SAMPLER
    sampler_ratio: float = 1.0
    schedule_delay: float | None = None
    batch_size: int = _BATCH_SIZE
    unused: tuple[str, ...] = ()

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

        def number(name: str, least: int, most: int, unit: str) -> int | None:
            return otel_variables.whole(name, environment.get(name, ""), least, most, unit)

        otel_variables.check_refused(environment)
        otel_variables.check_resource(environment)
        otel_variables.check_limits(environment)
        exporter = otel_variables.one_of(
            "OTEL_TRACES_EXPORTER", environment.get("OTEL_TRACES_EXPORTER", ""), ("otlp", "none")
        )
        for name in _HEADERS:
            _check_headers(name, environment.get(name, ""))
        protocol = otel_variables.one_of(*value("PROTOCOL"), PROTOCOLS)
        disabled = otel_variables.truth("OTEL_SDK_DISABLED", environment.get("OTEL_SDK_DISABLED", ""))
        sampler, ratio = otel_variables.sampler(environment)
        delay = number(
            "OTEL_BSP_SCHEDULE_DELAY",  # Milliseconds between two calls.
            _MIN_DELAY,
            _MAX_DELAY,
            "milliseconds",
        )
        batch_size = number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 1, _MAX_BATCH_SIZE, "a number of spans")
        return cls(
            endpoint="" if disabled or exporter == "none" else _endpoint(value("ENDPOINT"), protocol),
            protocol=protocol,
            service_name=environment.get("OTEL_SERVICE_NAME", ""),
            headers=value("HEADERS")[1],
            timeout=_timeout(value("TIMEOUT")),
            gzip=otel_variables.one_of(*value("COMPRESSION"), _COMPRESSIONS) == "gzip",
            insecure=otel_variables.truth(*value("INSECURE")),
            certificate=value("CERTIFICATE")[1],
            client_certificate=value("CLIENT_CERTIFICATE")[1],
            client_key=value("CLIENT_KEY")[1],
            sampler=sampler,
            sampler_ratio=ratio,
            schedule_delay=None if delay is None else delay / 1000,
            batch_size=batch_size or _BATCH_SIZE,
            unused=otel_variables.unused_variables(environment),
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


def _timeout(found: tuple[str, str]) -> float:
    milliseconds = otel_variables.whole(*found, _MIN_TIMEOUT, _MAX_TIMEOUT, "milliseconds")
    return DEFAULT_TIMEOUT if milliseconds is None else milliseconds / 1000


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
