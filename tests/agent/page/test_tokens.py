"""Who may read and write a page on loopback: real agents, a real relay, and the links that 'agentctl page' prints."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from click.testing import CliRunner
from penstock.agent.ctl.main import cli
from penstock.agent.page import PageServer, PageSource
from penstock.agent.server import Caller, Role, TcpAddress
from penstock.agent.server.options import PageSettings
from penstock.agent.server.page_tokens import TOKEN_SECONDS, PageTokens
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2_grpc import AdminServicer, AdminStub

from tests.support.agent.agent import AgentProcess, running_agent, short_directory
from tests.support.agent.certificates import Authority
from tests.support.page.addresses import AUTHOR, bearer, page_of, token_of
from tests.support.page.pods import Pods
from tests.support.page.tab import Tab, ask, write

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

PEER = "10.0.0.9:1"
ORDER = {"engine": "", "peer": PEER, "seconds": 60, "reason": "x", "undo": False, "dryRun": False}
HINT = "agentctl page"


class Idle(AdminServicer):
    """An admin service that knows nothing, and to which nothing happens."""

    def __getattribute__(self, name: str) -> Any:
        """Return a method that answers with an empty message."""
        method = admin.DESCRIPTOR.services_by_name["Admin"].methods_by_name.get(name)
        return (
            super().__getattribute__(name)
            if method is None
            else _silent
            if method.server_streaming
            else _empty(method)
        )


async def _silent(_request: object, _context: object) -> AsyncIterator[Any]:
    await asyncio.Event().wait()
    yield None


def _empty(method: Any) -> Callable[[object, object], Awaitable[Any]]:
    async def call(_request: object, _context: object) -> Any:
        return getattr(admin, method.output_type.name)()

    return call


@pytest.fixture(scope="module")
def open_page() -> Iterator[AgentProcess]:
    """Run an agent whose page everybody reads, and writes with a token."""
    with running_agent(["--page=127.0.0.1:0", "--page-write=yes"]) as running:
        yield running


@pytest.fixture(scope="module")
def closed_page() -> Iterator[AgentProcess]:
    """Run an agent whose page takes a token for everything."""
    with running_agent(["--page=127.0.0.1:0", "--page-write=yes", "--page-read=token"]) as running:
        yield running


def _tokens(agent: AgentProcess) -> dict[str, str]:
    """Return tokens by what they are, empty for none; the last three are not valid."""
    good = token_of(agent.admin)
    return {
        "write": good,
        "read": token_of(agent.admin, admin.PAGE_ROLE_READ),
        "none": "",
        "changed": good[:-8] + ("A" if good[-8] != "A" else "B") + good[-7:],
        "long": "A" * 5_000,
    }


def _hello(
    agent: AgentProcess, path_token: str = "", headers: dict[str, str] | None = None
) -> dict[str, object]:
    with Tab(page_of(agent), headers=headers or {}, token=path_token) as tab:
        found: dict[str, object] = tab.until("hello").data
        return found


def _quarantines(agent: AgentProcess) -> str:
    return CliRunner(env={"AGENTCTL_ADDRESS": agent.admin}).invoke(cli, ["quarantine", "list"]).output


def test_everybody_reads_an_open_page_and_nobody_writes_it(open_page: AgentProcess) -> None:
    """A token that reads does not write either; each refusal names the command."""
    page = page_of(open_page)
    for name, token in _tokens(open_page).items():
        headers = bearer(token) if token else {}
        assert ask(page, "/api/policies", headers).status == 200, name
        if name != "write":
            answer = write(page, "quarantine", ORDER, headers)
            assert answer.status == (403 if name == "read" else 401), name
            assert HINT in answer.body["error"], name
            assert write(page, "quarantine", {**ORDER, "dryRun": True}, headers).status == answer.status
    assert PEER not in _quarantines(open_page)


def test_a_token_that_writes_writes(open_page: AgentProcess) -> None:
    """The audit log has the author that the admin service knows."""
    token = token_of(open_page.admin, author="eve@shop")
    assert write(page_of(open_page), "quarantine", ORDER, bearer(token)).status == 200
    assert PEER in _quarantines(open_page)
    words = ["--address", open_page.admin, "get", "audit", "-o", "json"]
    entries = json.loads(CliRunner().invoke(cli, words).output)["entries"]
    assert [each["author"] for each in entries] == ["eve@shop (page)"]


def test_the_other_checks_of_a_write_stay(open_page: AgentProcess) -> None:
    """A page of another site that has the token has nothing."""
    own = bearer(token_of(open_page.admin))
    for headers in ({"Origin": "http://evil.example.com"}, {"X-Penstock": None}, {"Origin": None}):
        assert write(page_of(open_page), "quarantine", ORDER, {**own, **headers}).status == 403


def test_a_stream_says_what_its_token_allows(open_page: AgentProcess) -> None:
    """In the query, where a browser can say it, or in the header."""
    tokens = _tokens(open_page)
    for name, expected in {
        "write": (True, AUTHOR, ""),
        "read": (False, AUTHOR, "needed"),
        "none": (False, "", "needed"),
        "changed": (False, "", "ended"),
        "long": (False, "", "ended"),
    }.items():
        hello = _hello(open_page, tokens[name])
        assert (hello["writable"], hello["user"], hello["token"]) == expected, name
    assert _hello(open_page, headers=bearer(tokens["write"]))["writable"] is True


def test_a_token_in_another_query_says_nothing(open_page: AgentProcess, closed_page: AgentProcess) -> None:
    """Neither where it would read nor where it would write."""
    token = token_of(closed_page.admin)
    assert ask(page_of(closed_page), "/api/policies", token=token).status == 401
    own = token_of(open_page.admin)
    assert write(page_of(open_page), f"quarantine?token={own}", ORDER).status == 401


@pytest.mark.parametrize("closed", [True, False])
async def test_a_stream_ends_with_its_token(closed: bool) -> None:
    """Wherever it is read; the tab comes again, and is told what it needs."""
    now = [0.0]
    tokens = PageTokens(lambda: now[0])
    settings = PageSettings(
        TcpAddress("127.0.0.1", 0),
        write=True,
        user_header="",
        tls=None,
        allow=None,
        hosts=(),
        token_reads=closed,
    )
    server = PageServer(settings, Idle(), PageSource("agent", "one"), tokens)
    await server.start()
    reader, writer = await asyncio.open_connection(server.address.host, server.address.port)
    try:
        token = tokens.make(Caller(AUTHOR, Role.WRITE))
        writer.write(f"GET /api/stream?token={token} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        async with asyncio.timeout(120):
            came = await reader.readuntil(b"event: pulse")
            now[0] += TOKEN_SECONDS
            came += await reader.read(-1)
    finally:
        writer.close()
        await server.stop()
    assert b'"writable":true' in came
    assert came.count(b"event: bye") == 1
    assert b'"reason":"token"' in came
    assert HINT.encode() in came


def test_a_closed_page_shows_nothing_without_a_token(closed_page: AgentProcess) -> None:
    """But its own files, without which nobody could send one; unknown addresses included."""
    page = page_of(closed_page)
    for path in ("/", "/static/app.js", "/static/views/page.js", "/static/icon.svg"):
        assert ask(page, path).status == 200
    for name, token in _tokens(closed_page).items():
        headers = bearer(token) if token else {}
        status = 200 if name in ("read", "write") else 401
        answer = ask(page, "/api/policies", headers)
        assert answer.status == status, name
        if status == 401:
            for path in ("/api/stream", "/api/%70olicies", "/api/absent", "/absent", "/api//policies"):
                refused = ask(page, path, headers)
                assert (refused.status, HINT in refused.body["error"]) == (401, True), (name, path)
                assert refused.headers["WWW-Authenticate"] == "Bearer"
            assert write(page, "quarantine", ORDER, headers).status == 401
            assert token[:20] not in json.dumps(refused.body) or not token
    assert _hello(closed_page, token_of(closed_page.admin, admin.PAGE_ROLE_READ))["user"] == AUTHOR


def test_a_token_says_no_more_than_its_caller_may() -> None:
    """Over TLS by the certificate's name; the page on loopback asks for none."""
    with short_directory() as directory:
        authority = Authority(directory / "pki")
        server = authority.issue("localhost", file="server")
        flags = [
            *("--page=127.0.0.1:0", "--page-write=yes", "--admin-listen=localhost:0"),
            *(f"--admin-tls-cert={server.cert}", f"--admin-tls-key={server.key}"),
            *(f"--admin-tls-client-ca={authority.cert}", "--admin-allow=ops=write,grafana=read"),
        ]
        with running_agent(flags) as agent:
            address = json.loads((agent.state_dir / "addresses.json").read_text())["admin_tcp"]
            for name, role, granted in (
                ("grafana", admin.PAGE_ROLE_UNSPECIFIED, admin.PAGE_ROLE_READ),
                ("grafana", admin.PAGE_ROLE_READ, admin.PAGE_ROLE_READ),
                ("grafana", admin.PAGE_ROLE_WRITE, None),
                ("ops", admin.PAGE_ROLE_READ, admin.PAGE_ROLE_READ),
                ("ops", admin.PAGE_ROLE_UNSPECIFIED, admin.PAGE_ROLE_WRITE),
            ):
                files = authority.issue(common_name=name)
                with grpc.secure_channel(address, authority.credentials(files)) as channel:
                    request = admin.IssuePageTokenRequest(author="x", page_role=role)
                    if granted is None:
                        with pytest.raises(grpc.RpcError, match="no more than its caller has"):
                            AdminStub(channel).IssuePageToken(request, timeout=60)
                        continue
                    answer = AdminStub(channel).IssuePageToken(request, timeout=60)
                assert answer.page_role == granted
                hello = _hello(agent, answer.token)
                writable = granted == admin.PAGE_ROLE_WRITE
                assert (hello["user"], hello["writable"]) == (f"tls:{name} (x)", writable)


def test_the_page_of_a_relay_takes_the_relays_tokens() -> None:
    """Those of its agents say nothing to it."""
    with ExitStack() as parts:
        pods = Pods(parts)
        body = {"engine": "decode-1/0", "seconds": 60, "reason": "x", "undo": False, "dryRun": True}
        assert write(pods.page, "pause", body).status == 401
        for agent in pods.agents.values():
            assert write(pods.page, "pause", body, bearer(token_of(agent.admin))).status == 401
        token = token_of(pods.relay.address)
        assert write(pods.page, "pause", body, bearer(token)).status == 200
        link = pods.relay.agentctl("page", "--role", "read").stdout.strip()
        assert link.startswith(f"{pods.page}/#token=")
        assert write(pods.page, "pause", body, bearer(link.partition("=")[2])).status == 403
        assert token not in pods.relay.log()


@pytest.mark.parametrize("role", ["read", "write", None])
def test_agentctl_prints_the_link(open_page: AgentProcess, role: str | None) -> None:
    """Alone on standard output, and what it allows beside it."""
    words = ["--address", open_page.admin, "page", *(["--role", role] if role else [])]
    result = CliRunner().invoke(cli, words)
    (link,) = result.stdout.splitlines()
    token = link.removeprefix(f"{page_of(open_page)}/#token=")
    may_write = role != "read"

    assert result.exit_code == 0
    assert _hello(open_page, token)["writable"] is may_write
    assert ("read and write in your name, for 12h" in result.stderr) is may_write
    assert ("does not write" in result.stderr) is not may_write
    assert token not in result.stderr


def test_agentctl_prints_the_fields(open_page: AgentProcess) -> None:
    """For programs."""
    result = CliRunner().invoke(cli, ["--address", open_page.admin, "page", "-o", "json"])
    found = json.loads(result.stdout)

    assert {*found} == {"address", "token", "pageRole", "life"}
    assert (found["address"], found["pageRole"], found["life"]) == (
        f"{page_of(open_page)}/",
        "write",
        "43200s",
    )


def test_agentctl_says_why_there_is_no_link(open_page: AgentProcess) -> None:
    """No page, a proxy that names its users, and options of a bundle."""
    with running_agent(["--page=127.0.0.1:0"]) as reading:
        result = CliRunner().invoke(cli, ["--address", reading.admin, "page", "--role", "write"])
        assert result.exit_code == 0
        assert "does not write: that takes a page with --page-write yes" in result.stderr
    with running_agent() as off:
        result = CliRunner().invoke(cli, ["--address", off.admin, "page"])
        assert (result.exit_code, result.stdout) == (1, "")
        assert "serves no page; start it with --page" in result.stderr
    flags = ["--page=127.0.0.1:0", "--page-user-header=X-User", "--page-allow=alice=write"]
    with running_agent(flags) as proxied:
        result = CliRunner().invoke(cli, ["--address", proxied.admin, "page"])
        assert result.stdout.strip() == f"{page_of(proxied)}/"
        assert "takes no token" in result.stderr
    result = CliRunner().invoke(cli, ["--address", open_page.admin, "page", "--port", "1"])
    assert (result.exit_code, "give --bundle FILE" in result.stderr) == (2, True)
