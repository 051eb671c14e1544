"""Where spans go, by OpenTelemetry's environment."""

from __future__ import annotations

import pytest
from opentelemetry.util.re import parse_env_headers
from penstock.agent.errors import ConfigError
from penstock.agent.traces.export.otlp_config import ExportSettings, grpc_target

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
            ExportSettings(f"{URL}/v1/traces", "http/protobuf"),
        ),
        (
            {
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{URL}/here",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            },
            ExportSettings(f"{URL}/here", "http/protobuf"),
        ),
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4317",
                "OTEL_EXPORTER_OTLP_INSECURE": "True",
                "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "2500",
                "OTEL_EXPORTER_OTLP_TIMEOUT": "1000",
                "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
                "OTEL_EXPORTER_OTLP_HEADERS": "a=b",
                "OTEL_EXPORTER_OTLP_CERTIFICATE": "/ca",
                "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": "/own",
                "OTEL_EXPORTER_OTLP_CLIENT_KEY": "/key",
            },
            ExportSettings(
                "collector:4317",
                headers="a=b",
                timeout=2.5,
                gzip=True,
                insecure=True,
                certificate="/ca",
                client_certificate="/own",
                client_key="/key",
            ),
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
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10"),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "soon"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "600001"),
    ],
)
def test_what_there_is_not(variable, value):
    """One sentence names the variable, the value and what is expected."""
    with pytest.raises(ConfigError, match=f"{variable} '{value}' is wrong: expected"):
        ExportSettings.from_environment({"OTEL_EXPORTER_OTLP_ENDPOINT": URL, variable: value})


@pytest.mark.parametrize(
    ("endpoint", "target", "secure"),
    [
        ("http://collector:4317", "collector:4317", False),
        ("https://collector:4317/ignored", "collector:4317", True),
        ("http://collector", "collector:80", False),
        ("https://collector", "collector:443", True),
        ("collector:4317", "collector:4317", True),
        ("http://user:p%40ss@[::1]:4317", "[::1]:4317", False),
        ("unix:///run/otlp.sock", "unix:///run/otlp.sock", False),
    ],
)
def test_where_grpc_connects(endpoint, target, secure):
    """The scheme decides about TLS; without one the variable does, and without that it is on."""
    assert grpc_target(endpoint, insecure=None) == (target, secure)
    if "://" not in endpoint:
        assert grpc_target(endpoint, insecure=True) == (target, False)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize(
    "text", ["http://", "ftp://collector:1", "http://collector:99999", "http://collector:x", "http://a b", "http://[::1", "http://collector:0", "unix:x", "http://c\n"]
)  # fmt: skip
def test_an_endpoint_that_is_none(text, protocol):
    """An invalid endpoint fails the start with one sentence."""
    variable = "OTEL_EXPORTER_OTLP_ENDPOINT"
    environment = {variable: text, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    with pytest.raises(
        ConfigError, match=rf"^{variable} '.*' is wrong for {protocol}: expected http"
    ) as caught:
        ExportSettings.from_environment(environment)
    assert len(str(caught.value).splitlines()) == 1


def test_an_http_endpoint_needs_its_scheme():
    """An HTTP endpoint without a scheme is refused; the error hides a password in it."""
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "ftp://user:s3cret@collector:4318",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    with pytest.raises(ConfigError, match="'ftp://collector:4318' is wrong") as caught:
        ExportSettings.from_environment(environment)
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in repr(ExportSettings(headers="authorization=s3cret"))


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
    """The error about invalid headers hides their values."""
    with pytest.raises(ConfigError, match=f"^{variable} is wrong in part {part} ") as caught:
        ExportSettings.from_environment({variable: text})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "a=b", "a = b , c=Bearer%20d=,", "authorization=Basic dTpw"])
def test_headers_that_the_exporter_takes(text, caplog):
    """Valid headers give no message."""
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
    """Status and errors hide a password in the endpoint."""
    assert ExportSettings(endpoint).shown_endpoint == shown
