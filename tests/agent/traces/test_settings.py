"""Where spans go, by OpenTelemetry's environment."""

from __future__ import annotations

import pytest
from penstock.agent.errors import ConfigError
from penstock.agent.traces.settings import ExportSettings

URL = "http://collector:4317"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ExportSettings()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": URL}, ExportSettings(URL)),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://other", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": URL},
            ExportSettings(URL),
        ),
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": URL,
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            },
            ExportSettings(URL, "http/protobuf"),
        ),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": URL, "OTEL_EXPORTER_OTLP_PROTOCOL": ""}, ExportSettings(URL)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": URL, "OTEL_TRACES_EXPORTER": "otlp"}, ExportSettings(URL)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": URL, "OTEL_TRACES_EXPORTER": "none"}, ExportSettings()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": URL, "OTEL_SDK_DISABLED": "True"}, ExportSettings()),
    ],
)
def test_settings(environment, expected):
    """The signal's own variable wins; without an endpoint, or switched off, there is no export."""
    assert ExportSettings.from_environment(environment) == expected


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "GRPC"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
    ],
)
def test_what_there_is_not(variable, value):
    """One sentence names the variable, the value and what is expected."""
    with pytest.raises(ConfigError, match=f"{variable} '{value}' is wrong: expected"):
        ExportSettings.from_environment({"OTEL_EXPORTER_OTLP_ENDPOINT": URL, variable: value})
