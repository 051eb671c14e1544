"""Where spans go: OpenTelemetry's environment variables, read once."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.agent.errors import ConfigError
from penstock.agent.traces.export import endpoint as endpoints

if TYPE_CHECKING:
    from collections.abc import Mapping

PROTOCOLS: Final = ("grpc", "http/protobuf")
DEFAULT_TIMEOUT: Final = 10.0
_HEADERS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
# What the exporter takes; of all else it logs the text, secrets and all, and goes on without.
_HEADER = re.compile(r"\s*[-!#$%&'*+.^_`|~0-9A-Za-z]+\s*=[\t !#-+\--:<-\[\]-~]*")
# The variable is in milliseconds; some SDKs read it as seconds, which would show in a time-out of 10 ms.
_MIN_TIMEOUT, _MAX_TIMEOUT = 100, 600_000
_COMPRESSIONS = ("none", "gzip")


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """Where spans go.

    Attributes:
        endpoint: empty if spans go nowhere: no endpoint is configured, or it is switched off
            (``OTEL_TRACES_EXPORTER=none``, ``OTEL_SDK_DISABLED=true``).
        protocol: ``grpc`` or ``http/protobuf``.
        service_name: ``OTEL_SERVICE_NAME``; empty for ``vllm-<role>``.
        headers: as in the variable; may hold secrets.
        timeout: seconds of one call.
        insecure: no TLS, for a gRPC endpoint without a scheme; None where that is not said.
        certificate: path of the certificates to trust; empty for the system's.
        client_certificate, client_key: paths of our own; empty for none.

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
    def shown(self) -> str:
        """The endpoint as people may see it."""
        return endpoints.shown(self.endpoint)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ExportSettings:
        """Read the settings; a variable of the traces' own wins over the one of all signals.

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


def _endpoint(found: tuple[str, str], protocol: str) -> str:
    variable, text = found
    if not text:
        return ""
    try:
        endpoints.check(text, protocol)
    except ValueError as error:
        raise ConfigError(f"{variable} {endpoints.shown(text)!r} is wrong for {protocol}: {error}") from error
    if protocol != "grpc" and "TRACES" not in variable:
        return text.rstrip("/") + endpoints.TRACES_PATH
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
