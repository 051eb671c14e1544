"""Where spans go: OpenTelemetry's environment variables, read once.

Endpoint, headers, time-out, compression and certificates are read by the OTLP exporter itself; what is
read here is whether there is an export at all, over which protocol, and the service's name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.agent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

PROTOCOLS = ("grpc", "http/protobuf")
_HEADERS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
# What the exporter takes; of all else it logs the text, secrets and all, and goes on without.
_HEADER = re.compile(r"\s*[-!#$%&'*+.^_`|~0-9A-Za-z]+\s*=[\t !#-+\--:<-\[\]-~]*")


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """Where spans go.

    Attributes:
        endpoint: empty if spans go nowhere: no endpoint is configured, or it is switched off
            (``OTEL_TRACES_EXPORTER=none``, ``OTEL_SDK_DISABLED=true``).
        protocol: ``grpc`` or ``http/protobuf``.
        service_name: ``OTEL_SERVICE_NAME``; empty for ``vllm-<role>``.

    """

    endpoint: str = ""
    protocol: str = "grpc"
    service_name: str = ""

    @property
    def shown(self) -> str:
        """The endpoint as people may see it: without the user and the password that a URL can hold."""
        scheme, separator, rest = self.endpoint.rpartition("://")
        place, slash, path = rest.partition("/")
        return f"{scheme}{separator}{place.rpartition('@')[2]}{slash}{path}"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ExportSettings:
        """Read the settings.

        Raises:
            ConfigError: an exporter or a protocol that there is not, or headers that cannot be read.

        """

        def first(*variables: str) -> tuple[str, str]:
            return next(
                ((variable, environment[variable]) for variable in variables if environment.get(variable)),
                (variables[-1], ""),
            )

        variable, protocol = first("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
        if protocol and protocol not in PROTOCOLS:
            raise ConfigError(f"{variable} {protocol!r} is wrong: expected one of {', '.join(PROTOCOLS)}")
        exporter = environment.get("OTEL_TRACES_EXPORTER", "") or "otlp"
        if exporter not in ("otlp", "none"):
            raise ConfigError(f"OTEL_TRACES_EXPORTER {exporter!r} is wrong: expected otlp or none")
        for name in _HEADERS:
            _check_headers(name, environment.get(name, ""))
        _, endpoint = first("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
        disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
        return cls(
            endpoint="" if disabled or exporter == "none" else endpoint,
            protocol=protocol or "grpc",
            service_name=environment.get("OTEL_SERVICE_NAME", ""),
        )


def _check_headers(variable: str, text: str) -> None:
    for number, part in enumerate(text.split(","), 1):
        if part.strip() and _HEADER.fullmatch(part) is None:
            raise ConfigError(
                f"{variable} is wrong in part {number} (not shown, it may be secret):"
                " expected name=value,name=value with URL-encoded values"
            )
