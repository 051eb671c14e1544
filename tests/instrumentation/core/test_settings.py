"""The environment: read once, validated, and never a reason to fail."""

from __future__ import annotations

import dataclasses
import logging

import pytest
from penstock.instrumentation.core.settings import Settings, SettingsError, load, parse

SOCKET = "unix:///run/penstock/ingest.sock"


def test_off_without_an_endpoint(caplog: pytest.LogCaptureFixture) -> None:
    """Without PENSTOCK_ENDPOINT there are no settings and nothing is said, whatever else is set."""
    assert load({}) is None
    assert load({"PENSTOCK_ENDPOINT": " ", "PENSTOCK_LABELS": "nonsense"}) is None
    assert caplog.records == []


def test_everything() -> None:
    """Every variable arrives in its place; the downward API becomes labels."""
    found = parse(
        {
            "PENSTOCK_ENDPOINT": SOCKET,
            "PENSTOCK_SERVER": "left",
            "PENSTOCK_LABELS": "role=decode, tier=gold,example.com/x=",
            "PENSTOCK_HOOKS_DISABLED": "nixl, frontend,",
            "PENSTOCK_ALLOW_FAULTS": "1",
            "POD_NAME": "decode-0",
            "POD_UID": "",
        }
    )
    labels = {"role": "decode", "tier": "gold", "example.com/x": "", "POD_NAME": "decode-0"}
    assert found == Settings(SOCKET, "left", labels, frozenset({"nixl", "frontend"}), allow_faults=True)


@pytest.mark.parametrize(
    "endpoint", [SOCKET, "127.0.0.1:4320", "agent.svc:1", "[::1]:4320", "localhost:65535"]
)
def test_endpoints(endpoint: str) -> None:
    """Sockets by absolute path and host:port are taken as they are."""
    found = parse({"PENSTOCK_ENDPOINT": endpoint})
    assert found is not None
    assert found.endpoint == endpoint


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("PENSTOCK_ENDPOINT", "unix://run/penstock.sock", "unix:///run/penstock/ingest.sock"),
        ("PENSTOCK_ENDPOINT", "unix:///", "name a socket"),
        ("PENSTOCK_ENDPOINT", "unix:/run/x.sock", "unix:///run/penstock/ingest.sock"),
        ("PENSTOCK_ENDPOINT", f"unix:///{'x' * 107}", "107 bytes"),
        ("PENSTOCK_ENDPOINT", "http://agent:4317", "host:port"),
        ("PENSTOCK_ENDPOINT", "agent", "host:port"),
        ("PENSTOCK_ENDPOINT", "agent:0", "host:port"),
        ("PENSTOCK_ENDPOINT", "agent:65536", "host:port"),
        ("PENSTOCK_SERVER", "a b", "letters"),
        ("PENSTOCK_SERVER", "x" * 64, "63"),
        ("PENSTOCK_LABELS", "role", "key=value"),
        ("PENSTOCK_LABELS", "a b=c", "key=value"),
        ("PENSTOCK_POD_LABELS", "role=,a b=c", "key=value"),
        ("PENSTOCK_LABELS", "role=prefil", "prefill, decode, encoder, both"),
        ("PENSTOCK_LABELS", ",".join(f"l{index}=x" for index in range(65)), "60"),
        (
            "PENSTOCK_LABELS",
            ",".join(f"{'a' * 100}.io/l{n}={'x' * 60}" for n in range(40)),
            "keep at most 6144",
        ),
        ("PENSTOCK_ALLOW_FAULTS", "yes", "1 nor 0"),
        ("PENSTOCK_ALLOW_STACKS", "yes", "1 nor 0"),
    ],
)
def test_wrong_value_is_one_line(
    variable: str, value: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong value leaves Penstock off and is one line that names variable, value and the way out."""
    environ = {"PENSTOCK_ENDPOINT": SOCKET, variable: value}
    with pytest.raises(SettingsError):
        parse(environ)
    with caplog.at_level(logging.ERROR, "vllm.penstock"):
        assert load(environ) is None
    (record,) = caplog.records
    message = record.getMessage()
    assert variable in message
    assert repr(value) in message
    assert words in message
    assert "\n" not in message
    assert record.exc_info is None


@pytest.mark.parametrize(
    ("pod", "own", "labels"),
    [
        ("role=,revision=,lws=,", "", {}),
        ("role=decode,revision=5c5f,lws=", "", {"role": "decode", "revision": "5c5f"}),
        ("role=encode", "", {"role": "encoder"}),
        ("role=prefill-decode", "", {"role": "both"}),
        ("role=encode-prefill-decode", "", {"role": "both"}),
        ("role=encode-prefill", "", {"role": "prefill"}),
        ("role=leader,tier=gold", "", {"tier": "gold"}),
        ("role=decode,tier=gold,role=both,tier=lead", "", {"role": "both", "tier": "lead"}),
        ("role=decode,tier=gold", "role=prefill,x=", {"role": "prefill", "tier": "gold", "x": ""}),
    ],
)
def test_labels_of_the_pod(pod: str, own: str, labels: dict[str, str]) -> None:
    """A label that the pod lacks is left out, llm-d's roles get our names; PENSTOCK_LABELS wins."""
    found = parse({"PENSTOCK_ENDPOINT": SOCKET, "PENSTOCK_POD_LABELS": pod, "PENSTOCK_LABELS": own})
    assert found is not None
    assert found.labels == labels


def test_unknown_role_of_the_pod_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """A role that is not known does not keep Penstock off, and is one line."""
    with caplog.at_level(logging.WARNING, "vllm.penstock"):
        assert load({"PENSTOCK_ENDPOINT": SOCKET, "PENSTOCK_POD_LABELS": "role=leader"}) is not None
    (record,) = caplog.records
    assert "'leader'" in record.getMessage()


def test_settings_are_frozen() -> None:
    """They are immutable, labels included."""
    found = parse({"PENSTOCK_ENDPOINT": SOCKET, "PENSTOCK_LABELS": "a=b"})
    assert found is not None
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.endpoint = "x"  # type: ignore[misc]  # refused, which is the point
    with pytest.raises(TypeError):
        found.labels["a"] = "c"  # type: ignore[index]  # refused, which is the point


def test_names_that_are_not_utf8_can_be_sent() -> None:
    """Bytes of the environment that are not UTF-8, which Python hands over as surrogates, become plain text."""
    found = parse({"PENSTOCK_ENDPOINT": SOCKET, "POD_NAME": "pod-\udcff" + "x" * 300})
    assert found is not None
    assert found.labels["POD_NAME"] == "pod-?" + "x" * 248
