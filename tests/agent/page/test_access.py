"""Who may ask the page, and from where: a real agent, and the rules alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from penstock.agent.daemon.config import resolve
from penstock.agent.errors import ConfigError
from penstock.agent.page import access
from penstock.agent.page.wire import AnswerError
from penstock.agent.server import Role, TcpAddress, parse_allow_list
from penstock.agent.server.options import PageSettings

from tests.support.agent.agent import AgentProcess, running_agent
from tests.support.page.addresses import page_of
from tests.support.page.sample_fleet import manifest
from tests.support.page.tab import Tab, ask, write

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PAGE = "--page=127.0.0.1:0"
TLS = {
    "admin-listen": "127.0.0.1:1",
    "admin-tls-cert": "/c",
    "admin-tls-key": "/k",
    "admin-tls-client-ca": "/a",
    "admin-allow": "ops=write",
}
POLICY = {"name": "decode", "manifest": manifest("decode"), "dryRun": True}


@pytest.fixture(scope="module")
def agent() -> Iterator[AgentProcess]:
    """Run an agent whose page only reads."""
    with running_agent([PAGE]) as running:
        yield running


@pytest.fixture(scope="module")
def proxied() -> Iterator[AgentProcess]:
    """Run an agent whose page is behind a proxy."""
    flags = ["--page-write=yes", "--page-user-header=X-User", "--page-allow=alice=write,bob=read"]
    with running_agent([PAGE, *flags, "--page-host=shop.example.com"]) as running:
        yield running


def test_every_answer_is_safe_to_show(agent: AgentProcess) -> None:
    """No script of another origin, no frame, no form, no guess at a type, no cookie."""
    for path in ("/", "/static/app.js", "/api/policies", "/absent", "/api/absent", "/static/absent"):
        headers = ask(page_of(agent), path).headers
        assert headers["Content-Security-Policy"] == (
            "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
        )
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert "Set-Cookie" not in headers
        assert headers["Server"] == "penstock"


def test_files_are_sent_compressed(agent: AgentProcess) -> None:
    """To who takes it; both are the same script, by the same ETag."""
    page = page_of(agent)
    plain = ask(page, "/static/app.js")
    small = ask(page, "/static/app.js", {"Accept-Encoding": "gzip"})

    assert "Content-Encoding" not in plain.headers
    assert small.headers["Content-Encoding"] == "gzip"
    assert plain.headers["ETag"] == small.headers["ETag"]
    assert plain.headers["Vary"] == small.headers["Vary"] == "Accept-Encoding"
    assert int(small.headers["Content-Length"]) < int(plain.headers["Content-Length"]) // 2


def test_files_are_asked_for_once(agent: AgentProcess) -> None:
    """By their ETag; what is beside them is not served."""
    page = page_of(agent)
    first = ask(page, "/static/app.js")
    again = ask(page, "/static/app.js", {"If-None-Match": first.headers["ETag"]})

    assert (first.status, again.status) == (200, 304)
    assert first.headers["Content-Type"].startswith("text/javascript")
    for path in (
        "/static/../server.py",
        "/static/..%2fserver.py",
        "/static/%2e%2e/__init__.py",
        "/static/absent.js",
    ):
        assert ask(page, path).status == 404


@pytest.mark.parametrize(
    "host", ["evil.example.com", "localhost.evil.com", "127.0.0.1.evil.com", "", "[", "a@b"]
)
def test_a_name_that_was_bound_to_this_address_is_refused(agent: AgentProcess, host: str) -> None:
    """A page of evil.example.com asks its own name, which it lets point here."""
    for path in ("/", "/api/stream", "/api/policies"):
        assert ask(page_of(agent), path, {"Host": host}).status in (400, 403)


@pytest.mark.parametrize("host", ["localhost:1234", "127.0.0.1", "[::1]:80", "10.0.0.1:9465"])
def test_localhost_and_addresses_are_the_page(agent: AgentProcess, host: str) -> None:
    """With any port: kubectl port-forward chooses one."""
    assert ask(page_of(agent), "/", {"Host": host}).status == 200


def test_pages_of_other_sites_may_not_ask(agent: AgentProcess) -> None:
    """Neither by fetch nor by an event stream."""
    page = page_of(agent)
    for headers in (
        {"Origin": "http://evil.example.com"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        assert ask(page, "/api/policies", headers).status == 403
        assert ask(page, "/api/stream", headers).status == 403


def test_writes_are_refused_by_default(agent: AgentProcess) -> None:
    """Also a dry run: the page says how to switch them on."""
    answer = write(page_of(agent), "policy", POLICY)

    assert answer.status == 403
    assert "--page-write yes" in answer.body["error"]
    assert ask(page_of(agent), "/api/policies").body["sections"][0]["rows"] == []


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": None},
        {"Origin": "http://evil.example.com"},
        {"Origin": "https://shop.example.com.evil.com"},
        {"X-Penstock": None},
        {"X-Penstock": "1"},
        {"Content-Type": "text/plain"},
        {"Content-Type": None},
        {"X-User": "bob"},
        {"X-User": "mallory"},
        {"X-User": ""},
        {"X-User": None},
        {"Host": "evil.example.com"},
    ],
)
def test_a_write_that_lacks_something_changes_nothing(
    proxied: AgentProcess, headers: Mapping[str, str | None]
) -> None:
    """A form or a script of another site cannot make one that is whole."""
    page = page_of(proxied)
    body = {**POLICY, "dryRun": False}

    assert write(page, "policy", body, {"X-User": "alice", **headers}).status == 403
    assert ask(page, "/api/policies", {"X-User": "bob"}).body["sections"][0]["rows"] == []


def test_the_proxy_says_who_asks(proxied: AgentProcess) -> None:
    """By the list; without the header nobody is anybody."""
    page = page_of(proxied)
    for user, writable in (("alice", True), ("bob", False)):
        with Tab(page, headers={"X-User": user, "Host": "shop.example.com"}) as tab:
            hello = tab.until("hello").data
            assert (hello["user"], hello["writable"]) == (user, writable)
    for headers in ({}, {"X-User": "mallory"}, {"X-User": "al\tice"}, {"X-User": "x" * 300}):
        assert ask(page, "/", headers).status == 403
        assert ask(page, "/api/stream", headers).status == 403


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"1", b"[" * 100_000, b"\xff", b'{"dryRun": "yes"}'])
def test_a_body_that_is_no_write_is_refused(proxied: AgentProcess, body: bytes) -> None:
    """With a sentence."""
    answer = write(page_of(proxied), "policy", None, {"X-User": "alice"}, raw=body)

    assert answer.status == 400
    assert answer.body["error"]


def test_a_body_that_is_too_large_is_not_read(proxied: AgentProcess) -> None:
    """A megabyte is the limit."""
    answer = write(page_of(proxied), "policy", {"manifest": "x" * (1 << 20)}, {"X-User": "alice"})

    assert answer.status == 413


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"page": "0.0.0.0:9465"}, "can be reached from other machines"),
        ({"page": "0.0.0.0:9465", "page-user-header": "X-User"}, "no user is allowed"),
        ({"page-allow": "alice=read"}, "knows no users"),
        ({"page-user-header": "Host"}, "only the proxy sets"),
        ({"page-user-header": "X User"}, "only the proxy sets"),
        ({"page": "x"}, "or off"),
        ({"page-host": "a b"}, "names of hosts"),
        ({"trace-url-template": "javascript:alert('{trace_id}')"}, "expected a URL"),
        ({"trace-url-template": "https://jaeger.example.com/trace"}, "expected a URL"),
        ({"page-write": "maybe"}, "one of yes, no"),
        ({"page-read": "maybe"}, "one of open, token"),
    ],
)
def test_a_page_that_strangers_could_read_is_not_started(flags: dict[str, str], said: str) -> None:
    """Each with a sentence that says what to give."""
    with pytest.raises(ConfigError, match=said):
        resolve(dict(flags), {})


@pytest.mark.parametrize(
    ("flags", "by_token"),
    [
        ({}, True),
        ({"page-user-header": "X-User", "page-allow": "a=read"}, False),
        ({**TLS, "page": "0.0.0.0:1"}, False),
        (dict(TLS), True),
    ],
)
def test_reading_takes_a_token_where_nothing_else_names_the_users(
    flags: dict[str, str], by_token: bool
) -> None:
    """What the Kubernetes component sets for all agents stops none that is behind a proxy or has certificates."""
    page = resolve({**flags, "page-read": "token"}, {}).page
    assert page is not None
    assert page.token_reads is by_token


def test_outside_the_certificates_of_the_admin_service_are_asked_for() -> None:
    """On loopback they are not: there is nobody else."""
    outside, inside = resolve({**TLS, "page": "0.0.0.0:1"}, {}).page, resolve(dict(TLS), {}).page

    assert outside is not None
    assert inside is not None
    assert outside.tls is not None
    assert outside.allow == parse_allow_list("ops=write")
    assert (inside.tls, inside.allow) == (None, None)
    assert resolve({"page": "off"}, {}).page is None


def _settings(**values: object) -> PageSettings:
    given: dict[str, object] = {
        "write": True,
        "user_header": "",
        "tls": None,
        "allow": None,
        "hosts": (),
        **values,
    }
    return PageSettings(TcpAddress("127.0.0.1", 0), **given)  # type: ignore[arg-type]


def test_a_certificate_counts_by_its_names() -> None:
    """As for the admin service."""
    settings = _settings(allow=parse_allow_list("ops=write,grafana=read"))

    assert access.user_of({}, ["x", "grafana"], settings).role is Role.READ
    assert access.user_of({}, ["grafana", "ops"], settings).role is Role.WRITE
    for names in ([], None, ["mallory"]):
        with pytest.raises(AnswerError, match="not on the list"):
            access.user_of({}, names, settings)
