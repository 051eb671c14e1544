"""The connector's configuration."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from penstock.instrumentation.vllm.zmq_ec import settings
from penstock.instrumentation.vllm.zmq_ec.wire import CurveFiles

ROOT = Path(__file__).parents[4]


def load(index: int = 0, **extra: Any) -> settings.ZmqEcSettings:
    """Load a configuration."""
    return settings.load(
        extra, ip="10.0.0.1", port=14579, buffer_bytes=1e9, model="org/model", data_parallel_index=index
    )


def test_defaults() -> None:
    """VLLM's own fields are used where they say it."""
    found = load(index=2)
    assert (found.host, found.port, found.model) == ("10.0.0.1", 14581, "org/model")
    assert found.host_cache_bytes == found.consumer.region_bytes == 1_000_000_000
    assert found.consumer == settings.ConsumerSettings()
    assert not found.curve.enabled


def test_what_is_given() -> None:
    """Each key is taken."""
    given: dict[str, Any] = {
        "producers": ["enc-0:14579", "[fd00::1]:14579", "enc-0:14579"], "allow_request_producers": True,
        "region_bytes": 1 << 20, "probe_timeout": 0.2, "start_timeout": 1, "idle_timeout": 3, "transfer_timeout": 4,
        "retries": 2, "missing_for": 5, "bad_for": 6, "load_failure": "fail", "same_host": False,
    }  # fmt: skip
    found = load(**given, model="m", host_cache_bytes=1 << 21)
    assert found.model == "m"
    assert found.host_cache_bytes == 1 << 21
    assert found.consumer == settings.ConsumerSettings(
        **{**given, "producers": ("enc-0:14579", "[fd00::1]:14579")}
    )


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        ({"producer": []}, "unknown keys: producer"),
        ({"producers": "enc:1"}, "list"),
        ({"producers": ["enc"]}, "'enc'"),
        ({"producers": ["enc:0"]}, "'enc:0'"),
        ({"producers": [3]}, "3"),
        ({"producers": ["enc:1"] * 257}, "256"),
        ({"allow_request_producers": "yes"}, "true or false"),
        ({"region_bytes": 10}, "region_bytes"),
        ({"region_bytes": True}, "region_bytes"),
        ({"retries": 3}, "from 0 to 2"),
        ({"probe_timeout": 0}, "probe_timeout"),
        ({"probe_timeout": float("nan")}, "probe_timeout"),
        ({"load_failure": "auto"}, "recompute or fail"),
        ({"model": ""}, "model"),
        ({"curve_key_file": "keys/a.key_secret"}, "absolute path"),
        ({"curve_allowed_clients": ["/keys"]}, "curve_allowed_clients"),
    ],
)
def test_what_is_refused(extra: dict[str, Any], why: str) -> None:
    """With the value, and what would be right."""
    with pytest.raises(ValueError, match=why):
        load(**extra)


@pytest.mark.parametrize(
    ("params", "found"),
    [
        ({"a": {"peer_host": "enc", "peer_port": 1}}, ("enc:1",)),
        ({"a": {"peer_host": "fd00::1", "peer_port": "14579"}}, ("[fd00::1]:14579",)),
        ({"b": {"peer_host": "enc", "peer_port": 1}}, ()),
        ({"a": {"peer_host": "enc/x", "peer_port": 1}}, ()),
        ({"a": {"peer_host": "enc", "peer_port": 1 << 16}}, ()),
        ({"a": {"peer_host": "enc"}}, ()),
        ({"a": "enc:1"}, ()),
        (None, ()),
        ([], ()),
    ],
)
def test_a_producer_that_a_request_names(params: Any, found: tuple[str, ...]) -> None:
    """Clients write it: text that is no address gives no peer."""
    assert settings.named_producer(params, "a") == found


def test_the_documentation_names_every_key_with_its_default() -> None:
    """The documented settings are the ones that are read."""
    text = (ROOT / "docs" / "zmq-ec-connector.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", text, re.MULTILINE))
    for field in fields(settings.ConsumerSettings):
        default = "[]" if field.default == () else field.default
        default = str(default).lower() if isinstance(default, bool) else default
        if field.name != "region_bytes":
            assert rows.pop(field.name) == f"`{default}`"
    curve = [f"curve_{field.name}" for field in fields(CurveFiles)]
    assert sorted(rows) == sorted(["host_cache_bytes", "model", "region_bytes", *curve])
