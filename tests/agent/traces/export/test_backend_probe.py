"""The probe of the trace backend before the first span, against real sockets."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import grpc
import pytest
from penstock.agent.traces.export.otlp_config import ExportSettings
from penstock.agent.traces.export.status import probe_endpoint
from penstock.agent.views.checks.agent_checks import check_agent
from penstock.agent.views.checks.findings import WRONG
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2_grpc import AdminStub

from tests.support.agent.agent import running_agent, short_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

_NO_PROXY = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@pytest.fixture(autouse=True)
def _direct(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _NO_PROXY:
        monkeypatch.delenv(name, raising=False)


def _ask(endpoint: str, protocol: str = "grpc") -> str:
    return asyncio.run(probe_endpoint(ExportSettings(endpoint=endpoint, protocol=protocol)))


@pytest.fixture
def silent() -> Iterator[int]:
    """Return a port that is reserved and not listened on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.mark.parametrize(
    ("endpoint", "protocol"),
    [
        ("http://127.0.0.1:PORT", "grpc"),
        ("127.0.0.1:PORT", "grpc"),
        ("https://127.0.0.1:PORT/v1/traces", "http/protobuf"),
    ],
)
def test_a_port(silent: int, endpoint: str, protocol: str) -> None:
    """A probe of a TCP port reports whether a process listens."""
    assert _ask(endpoint.replace("PORT", str(silent)), protocol) == "nothing listens there"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert _ask(endpoint.replace("PORT", str(port)), protocol) == ""


def test_a_unix_socket() -> None:
    """Both forms of a unix address are probed."""
    with short_directory() as directory, socket.socket(socket.AF_UNIX) as server:
        assert _ask(f"unix://{directory}/b.sock") == "nothing listens there"
        server.bind(f"{directory}/b.sock")
        server.listen()
        for scheme in ("unix:", "unix://"):
            assert _ask(f"{scheme}{directory}/b.sock") == ""


def test_a_name_without_an_address() -> None:
    """The error names the host that does not resolve."""
    assert _ask("http://nowhere.invalid:4317").startswith("nowhere.invalid has no address")


def test_behind_a_proxy_nothing_is_said(silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a proxy there is no probe."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert _ask(f"http://127.0.0.1:{silent}") == ""


def test_doctor_says_that_nothing_listens(silent: int) -> None:
    """The status reports a refused connection before the first span, and only on request."""
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{silent}"}
    with running_agent(env=environment) as agent, grpc.insecure_channel(agent.admin) as channel:
        stub = AdminStub(channel)
        assert stub.GetStatus(admin.GetStatusRequest(), timeout=60).otlp_error == ""
        status = stub.GetStatus(admin.GetStatusRequest(try_backend=True), timeout=60)
    now = status.now.ToNanoseconds() / 1e9
    found = [item for item in check_agent(status, [], now) if "traces" in item.what]
    assert [(item.level, item.what) for item in found] == [
        (WRONG, f"traces do not reach http://127.0.0.1:{silent}: nothing listens there")
    ]
