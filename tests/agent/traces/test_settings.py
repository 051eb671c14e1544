"""Where spans go, by OpenTelemetry's environment."""

from __future__ import annotations

import pytest
from opentelemetry.util.re import parse_env_headers
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


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("Authorization Bearer s3cret", 1),
        ("a=b, authorization: s3cret", 2),
        ("a=b,,c=s3cret\u00e9", 3),
        ('a="s3cret"', 1),
    ],
)
@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"])
def test_headers_that_cannot_be_read_are_not_shown(variable, text, part):
    """The exporter would log them as they are."""
    with pytest.raises(ConfigError, match=f"^{variable} is wrong in part {part} ") as caught:
        ExportSettings.from_environment({variable: text})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "a=b", "a = b , c=Bearer%20d=,", "authorization=Basic dTpw"])
def test_headers_that_the_exporter_takes(text, caplog):
    """It says nothing about them."""
    ExportSettings.from_environment({"OTEL_EXPORTER_OTLP_HEADERS": text})
    parse_env_headers(text, liberal=True)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("endpoint", "shown"),
    [
        ("", ""),
        ("collector:4317", "collector:4317"),
        ("http://collector:4317/v1/a@b", "http://collector:4317/v1/a@b"),
        ("https://user:p%40ss@collector:4318/v1", "https://collector:4318/v1"),
    ],
)
def test_a_password_in_the_endpoint_is_not_shown(endpoint, shown):
    """Neither in the status nor in an error."""
    assert ExportSettings(endpoint).shown == shown
