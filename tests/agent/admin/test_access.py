"""Who may do what over TCP: real certificates, real TLS."""

from __future__ import annotations

from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from penstock.agent.admin.authorization import READING, AccessInterceptor
from penstock.agent.errors import AccessError, ConfigError
from penstock.agent.server.addresses import TcpAddress, UnixAddress
from penstock.agent.server.callers import LOCAL, AdminTls, Caller, Role, parse_allow_list
from penstock.agent.server.grpc_server import GrpcServer
from penstock.agent.server.tls import Certificates, client_names
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import admin_pb2_grpc
from structlog.testing import capture_logs

from tests.support.agent.agent import short_directory
from tests.support.agent.certificates import Authority, Files

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

SERVICE = admin.DESCRIPTOR.services_by_name["Admin"]
ALLOWED = (
    "ops=write,grafana=read,both@example=read,both.example=write,spiffe://cluster/grafana=read,10.0.0.7=read"
)


class _Recorder(admin_pb2_grpc.AdminServicer):
    """Every method of the service, as it is or will be; remembers who called what."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        for method in SERVICE.methods:
            setattr(
                self,
                method.name,
                self._streaming(method) if method.server_streaming else self._single(method),
            )

    def _note(self, method: Any, request: Any) -> Any:
        self.calls.append((method.name, getattr(request, "author", "")))
        return getattr(admin, method.output_type.name)()

    def _single(self, method: Any) -> Any:
        async def call(request: Any, _: Any) -> Any:
            return self._note(method, request)

        return call

    def _streaming(self, method: Any) -> Any:
        async def call(request: Any, _: Any) -> AsyncIterator[Any]:
            yield self._note(method, request)

        return call


class _Served:
    """A server with TLS, and the authority that both sides trust."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory / "pki")
        server = self.authority.issue("localhost", file="server")
        self.files = AdminTls(server.cert, server.key, self.authority.cert, parse_allow_list(ALLOWED))
        self.service = _Recorder()
        self.server = GrpcServer(
            TcpAddress("localhost", 0),
            "--admin-listen",
            0o600,
            credentials=Certificates(self.files).credentials(),
            interceptors=[AccessInterceptor(self.files.allow)],
        )
        admin_pb2_grpc.add_AdminServicer_to_server(self.service, self.server.server)

    def channel(self, client: Files | None, authority: Authority | None = None) -> grpc.aio.Channel:
        """Connect as *client*."""
        credentials = (authority or self.authority).credentials(client)
        return grpc.aio.secure_channel(str(self.server.address), credentials)


@pytest.fixture
async def served() -> AsyncIterator[_Served]:
    """Serve."""
    with short_directory() as directory:
        served = _Served(directory)
        await served.server.start()
        yield served
        await served.server.stop(0)


async def _call(channel: grpc.aio.Channel, method: Any, **fields: Any) -> tuple[grpc.StatusCode, str]:
    request = getattr(admin, method.input_type.name)(**fields)
    call = getattr(admin_pb2_grpc.AdminStub(channel), method.name)(request, timeout=60)
    try:
        if method.server_streaming:
            _ = [response async for response in call]
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


@pytest.mark.parametrize("method", list(SERVICE.methods), ids=lambda method: method.name)
async def test_every_method_has_its_role(served: _Served, method: Any) -> None:
    """A reader may call no method that changes state, and no method that the list lacks."""
    async with served.channel(served.authority.issue(common_name="grafana")) as channel:
        code, details = await _call(channel, method)
    if method.name in READING:
        author = "tls:grafana" if "author" in method.input_type.fields_by_name else ""
        assert (code, served.service.calls) == (grpc.StatusCode.OK, [(method.name, author)])
    else:
        assert (code, served.service.calls) == (grpc.StatusCode.PERMISSION_DENIED, [])
        assert details == (
            f"'grafana' has read access, {method.name} needs write access; "
            "start penstock-agent with --admin-allow grafana=write to grant it"
        )
    async with served.channel(served.authority.issue(common_name="ops")) as channel:
        assert await _call(channel, method) == (grpc.StatusCode.OK, "")
    assert served.service.calls[-1][0] == method.name


def test_what_reads_is_what_it_says() -> None:
    """Methods that read are recognized by their names; a new method fails this test until it is listed."""
    assert {method.name for method in SERVICE.methods} >= READING
    assert {method.name for method in SERVICE.methods} - READING == {
        "ApplyPolicy",
        "DeletePolicy",
        "RollbackPolicy",
        "ImportPolicies",
        "SetPaused",
        "SetQuarantine",
        "SetEjection",
        "StartDrill",
        "StopDrill",
        "Backup",
        "Forget",
        "SetPolicyRollout",
        "GetStacks",
    }


@pytest.mark.parametrize(
    "method",
    [method for method in SERVICE.methods if "author" in method.input_type.fields_by_name],
    ids=lambda method: method.name,
)
async def test_the_author_is_the_name_in_the_certificate(served: _Served, method: Any) -> None:
    """The audit log keeps the author that the client claims beside the certificate's name, never instead of it."""
    async with served.channel(served.authority.issue(common_name="ops")) as channel:
        await _call(channel, method, author="tls:boss")
        await _call(channel, method)
    assert served.service.calls == [(method.name, "tls:ops (tls:boss)"), (method.name, "tls:ops")]


@pytest.mark.parametrize(
    ("names", "author"),
    [
        (["both@example"], None),
        (["both.example"], "tls:both.example"),
        (["other.example", "both.example", "both@example"], "tls:both.example"),
    ],
)
async def test_alternative_names_count(served: _Served, names: list[str], author: str | None) -> None:
    """Of several names in one certificate, the one with the highest role counts."""
    client = served.authority.issue(*names, file="names")
    async with served.channel(client) as channel:
        code, _ = await _call(channel, SERVICE.methods_by_name["DeletePolicy"], name="x")
        reading, _ = await _call(channel, SERVICE.methods_by_name["GetStatus"])
    assert reading is grpc.StatusCode.OK
    assert code is (grpc.StatusCode.OK if author else grpc.StatusCode.PERMISSION_DENIED)
    assert author is None or served.service.calls[0] == ("DeletePolicy", author)


async def test_a_name_that_is_not_on_the_list(served: _Served) -> None:
    """A valid certificate without a listed name is refused; the error shows its names."""
    client = served.authority.issue("ops.example", common_name="mallory")
    async with served.channel(client) as channel:
        code, details = await _call(channel, SERVICE.methods_by_name["GetStatus"])
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert details == (
        "the client's certificate ('mallory', 'ops.example') is not on the list; "
        "start penstock-agent with --admin-allow NAME=read or NAME=write"
    )
    assert served.service.calls == []


@pytest.mark.parametrize(
    ("common_names", "alternatives"),
    [
        (["ops\0.evil.com"], []),
        (["ops", "x\0"], []),
        (["ops\n"], []),
        (["\u202eops"], []),
        (["mallory"], [x509.DNSName("both.example\0.evil.com")]),
        (["mallory"], [x509.UniformResourceIdentifier("both.example\0")]),
        (["ops"], [x509.RFC822Name("a@b\0")]),
    ],
)
async def test_a_name_with_a_character_that_cannot_be_printed(
    served: _Served, common_names: list[str], alternatives: list[x509.GeneralName]
) -> None:
    """No name of such a certificate counts: gRPC reports the text before a NUL as the whole name."""
    async with served.channel(served.authority.issue_as(common_names, alternatives)) as channel:
        code, details = await _call(channel, SERVICE.methods_by_name["GetStatus"])
    assert (code, served.service.calls) == (grpc.StatusCode.PERMISSION_DENIED, [])
    assert details.startswith("the client's certificate has the name '")
    assert details.endswith("with a character that cannot be printed; issue one without it")
    assert details.isprintable()


@pytest.mark.parametrize(
    "alternative",
    [
        x509.DNSName("both.example"),
        x509.RFC822Name("both@example"),
        x509.UniformResourceIdentifier("spiffe://cluster/grafana"),
        x509.IPAddress(ip_address("10.0.0.7")),
    ],
)
async def test_each_kind_of_alternative_name_counts(served: _Served, alternative: x509.GeneralName) -> None:
    """Each alternative name is compared as written in the certificate; a common name is not needed."""
    async with served.channel(served.authority.issue_as([], [alternative])) as channel:
        assert (await _call(channel, SERVICE.methods_by_name["GetStatus"]))[0] is grpc.StatusCode.OK


async def test_certificates_that_are_worth_nothing(served: _Served) -> None:
    """No certificate, an expired one, another authority's and a plain connection: no call is answered."""
    status = SERVICE.methods_by_name["GetStatus"]
    with short_directory() as directory:
        stranger = Authority(directory)
        clients = [
            served.channel(None),
            served.channel(served.authority.issue(common_name="ops", expired=True, file="old")),
            served.channel(stranger.issue(common_name="ops")),
            # The client does not trust the server either.
            served.channel(served.authority.issue(common_name="ops"), stranger),
            grpc.aio.insecure_channel(str(served.server.address)),
        ]
        for channel in clients:
            async with channel:
                code, _ = await _call(channel, status)
                assert code is grpc.StatusCode.UNAVAILABLE
                with pytest.raises(grpc.aio.AioRpcError):
                    await health_pb2_grpc.HealthStub(channel).Check(
                        health_pb2.HealthCheckRequest(), timeout=60
                    )
    assert served.service.calls == []


async def test_certificates_are_renewed_while_it_runs(served: _Served) -> None:
    """New connections get the new certificate; an unusable one is not loaded, and logged."""
    client = served.authority.issue(common_name="ops")
    status = SERVICE.methods_by_name["GetStatus"]
    renewed = Authority(served.files.cert.parent / "new")
    server = renewed.issue("localhost", file="server")
    with capture_logs() as logs:
        served.files.cert.write_bytes(server.cert.read_bytes())
        # The key is still the old one.
        async with served.channel(client) as channel:
            assert (await _call(channel, status))[0] is grpc.StatusCode.OK
        served.files.key.write_bytes(server.key.read_bytes())
        async with served.channel(client, renewed) as channel:
            assert (await _call(channel, status))[0] is grpc.StatusCode.OK
        async with served.channel(client) as channel:
            assert (await _call(channel, status))[0] is grpc.StatusCode.UNAVAILABLE
    assert {log["event"] for log in logs} == {
        "new certificates are invalid; the present ones stay in use",
        "new certificates are in use",
    }


@asynccontextmanager
async def _over_unix(service: admin_pb2_grpc.AdminServicer) -> AsyncIterator[grpc.aio.Channel]:
    with short_directory() as directory:
        address = UnixAddress(directory / "a.sock")
        server = GrpcServer(address, "--admin-listen", 0o600, interceptors=[AccessInterceptor(None)])
        admin_pb2_grpc.add_AdminServicer_to_server(service, server.server)
        await server.start()
        async with grpc.aio.insecure_channel(str(address)) as channel:
            yield channel
        await server.stop(0)


async def test_the_unix_socket_allows_every_call() -> None:
    """A client of the unix socket may call every method and name its author, except names reserved for the agent."""
    service = _Recorder()
    apply = SERVICE.methods_by_name["ApplyPolicy"]
    async with _over_unix(service) as channel:
        assert await _call(channel, apply, author="me@host") == (grpc.StatusCode.OK, "")
        for author in ("tls:ops", "file:policies.yaml"):
            code, details = await _call(channel, apply, author=author)
            assert code is grpc.StatusCode.PERMISSION_DENIED
            assert details.startswith(f"author '{author}' cannot be claimed: names that begin with tls: or")
    assert service.calls == [("ApplyPolicy", "me@host")]


def _garbled(channel: grpc.aio.Channel, path: str, *, streaming: bool) -> Any:
    """Call a method with bytes that are no message."""
    method: Any = channel.unary_stream(path) if streaming else channel.unary_unary(path)
    return method(b"\xff" * 64, timeout=60)


async def _end(call: Any) -> tuple[grpc.StatusCode, str]:
    return await call.code(), await call.details()


@pytest.mark.parametrize("method", list(SERVICE.methods), ids=lambda method: method.name)
async def test_garbage_is_parsed_after_the_caller_was_let_in(
    served: _Served, method: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A caller without the role gets PERMISSION_DENIED, one with it INVALID_ARGUMENT. Neither leaves a traceback."""
    path = f"/{SERVICE.full_name}/{method.name}"
    for name, expected in (
        ("mallory", grpc.StatusCode.PERMISSION_DENIED),
        ("grafana", grpc.StatusCode.INVALID_ARGUMENT if method.name in READING else grpc.StatusCode.PERMISSION_DENIED),
        ("ops", grpc.StatusCode.INVALID_ARGUMENT),
    ):  # fmt: skip
        async with served.channel(served.authority.issue(common_name=name)) as channel:
            code, details = await _end(_garbled(channel, path, streaming=method.server_streaming))
        assert code is expected
        if code is grpc.StatusCode.INVALID_ARGUMENT:
            assert details.startswith(f"the request is not a {method.input_type.full_name}; ")
    assert served.service.calls == []
    assert caplog.records == []


@pytest.mark.parametrize(("method", "streaming"), [("Check", False), ("Watch", True)])
async def test_garbage_for_the_health_service(
    method: str, streaming: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Every socket of the agent serves it; garbage is refused, a valid request is answered."""
    async with _over_unix(admin_pb2_grpc.AdminServicer()) as channel:
        path = f"/grpc.health.v1.Health/{method}"
        code, details = await _end(_garbled(channel, path, streaming=streaming))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert details.startswith("the request is not a grpc.health.v1.HealthCheckRequest; ")
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=60)
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=60)
        assert answer == await watch.read() == health_pb2.HealthCheckResponse(status="SERVING")
        watch.cancel()
    assert caplog.records == []


@pytest.mark.parametrize("method", ["Backup", "WatchEvents"])
async def test_a_method_that_is_not_here(method: str) -> None:
    """UNIMPLEMENTED names the method."""
    async with _over_unix(admin_pb2_grpc.AdminServicer()) as channel:
        answer = await _call(channel, SERVICE.methods_by_name[method])
    assert answer == (grpc.StatusCode.UNIMPLEMENTED, f"this agent has no {method}")


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    """The error comes at the start, not at the first handshake."""
    authority = Authority(tmp_path)
    one, two = authority.issue("a.example", file="one"), authority.issue("b.example", file="two")
    bad = tmp_path / "bad.pem"
    bad.write_text("nothing")
    for cert, key, client_ca, sentence in (
        (tmp_path / "absent.pem", one.key, authority.cert, "--admin-tls-cert .*absent.pem' is no file; name a PEM file"),
        (one.cert, two.key, authority.cert, "cannot be used .*name a certificate and its own key"),
        (bad, one.key, authority.cert, "cannot be used .*name a certificate and its own key"),
        (one.cert, one.key, bad, "--admin-tls-client-ca .*bad.pem' cannot be used .*name certificates in PEM"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=sentence):
            Certificates(AdminTls(cert, key, client_ca, parse_allow_list("ops=read")))


@pytest.mark.parametrize("claimed", ["", "me", "x" * 5000])
def test_an_author_is_bounded(claimed: str) -> None:
    """The author in the audit log is cut at its limit."""
    author = Caller("ops", Role.READ).author(claimed)
    assert author.startswith("tls:ops")
    assert len(author) < 300
    assert LOCAL.author(claimed) == claimed


def test_a_certificate_without_names() -> None:
    """It identifies no caller."""
    with pytest.raises(AccessError, match=r"the client's certificate \(no name\) is not on the list"):
        parse_allow_list("ops=read").admit([])
    with pytest.raises(AccessError):
        parse_allow_list("").admit(["ops"])


@pytest.mark.parametrize("context", [{}, {"x509_pem_cert": []}, {"x509_pem_cert": [b"no certificate"]}])
def test_a_connection_without_a_certificate(context: dict[str, list[bytes]]) -> None:
    """It is refused, whatever names gRPC reports."""
    with pytest.raises(AccessError, match=r"has no certificate|cannot be read"):
        client_names({**context, "x509_common_name": [b"ops"]})
