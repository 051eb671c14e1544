"""What a hostile client sends over a raw socket, and what hostile names do on the way out: a real agent and its page."""

from __future__ import annotations

import json
import re
import socket
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import pytest
from penstock.agent.page.details.arguments import json_object
from penstock.agent.page.wire import AnswerError, command, encode, plain

from tests.support.agent.agent import AgentProcess, running_agent, wait_until
from tests.support.agent.batches import deferral_start, transfer_failure
from tests.support.page.addresses import bearer, page_of, token_of
from tests.support.page.sample_fleet import PEERS, sample_fleet, snapshot
from tests.support.page.shell import words_of
from tests.support.page.tab import Tab, ask, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.agent.ingest_client import FakeEngine

DIRECTIONS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_RAW = re.compile(f"[{DIRECTIONS}]")
_UTF_8 = "application/json; charset=utf-8"
_HUGE = "1" + "0" * 5_000
_PAUSE = '{"engine": "", "reason": "x", "undo": false, "dryRun": true, "seconds": 1'


@pytest.fixture(scope="module")
def fleet() -> Iterator[tuple[AgentProcess, list[FakeEngine]]]:
    """Run an agent whose page writes, with a fleet."""
    flags = ["--page=127.0.0.1:0", "--page-write=yes"]
    with running_agent(flags) as running, sample_fleet(running) as engines:
        yield running, engines


@pytest.fixture
def agent(fleet: tuple[AgentProcess, list[FakeEngine]]) -> AgentProcess:
    """Return the agent."""
    return fleet[0]


@pytest.fixture(scope="module")
def proxied() -> Iterator[AgentProcess]:
    """Run an agent whose page is behind a proxy."""
    flags = ["--page=127.0.0.1:0", "--page-user-header=X-User", "--page-allow=alice=write"]
    with running_agent(flags) as running:
        yield running


def _exchange(page: str, head: bytes, body: bytes = b"") -> tuple[int, bytes]:
    """Send bytes as they are; return the status and all that comes back."""
    place = urlsplit(page)
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=60) as connection:
        connection.sendall(head + b"\r\n\r\n" + body)
        came = b""
        while part := connection.recv(65536):
            came += part
    return int(came.split(b" ", 2)[1]), came


def _get(page: str, target: bytes, *headers: bytes) -> tuple[int, bytes]:
    own = [b"GET " + target + b" HTTP/1.1", b"Host: localhost", *headers]
    return _exchange(page, b"\r\n".join(own))


def _write(
    agent: AgentProcess, body: bytes, *, kind: str = "pause", content_type: str = _UTF_8
) -> tuple[int, str]:
    page = page_of(agent)
    head = (
        f"POST /api/write/{kind} HTTP/1.1\r\nHost: {urlsplit(page).netloc}\r\nOrigin: {page.rstrip('/')}\r\n"
        f"Authorization: Bearer {token_of(agent.admin)}\r\nX-Penstock: page\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}"
    )
    status, came = _exchange(page, head.encode("latin-1"), body)
    return status, json.loads(came.partition(b"\r\n\r\n")[2]).get("error", "")


@pytest.mark.parametrize(
    ("content_type", "body", "status", "sentence"),
    [
        ("application/json", (_PAUSE + "}").encode(), 200, ""),
        ("application/json; charset=UTF-8", (_PAUSE + "}").encode(), 200, ""),
        (_UTF_8, (_PAUSE + ', "more": "😀"}').encode(), 200, ""),
        (_UTF_8, (_PAUSE + ', "more": "\\ud83d\\ude00"}').encode(), 200, ""),
        ("application/json; charset=no-such", b"{}", 415, "send the body in UTF-8"),
        ("application/json; charset=utf-16", "{}".encode("utf-16"), 415, "send the body in UTF-8"),
        ("application/json; charset=latin-1", b"{}", 415, "send the body in UTF-8"),
        ("application/json; charset=\xff", b"{}", 415, "send the body in UTF-8"),
        (_UTF_8, b'{"a": "\xff"}', 400, "the body is not UTF-8"),
        (_UTF_8, b'{"a": "\xed\xa0\x80"}', 400, "the body is not UTF-8"),
        (_UTF_8, (_PAUSE + ', "reason": "\\ud800"}').encode(), 400, "lone surrogate"),
        (_UTF_8, b'{"\\udfff": [[{"a": 1}]]}', 400, "lone surrogate"),
        (_UTF_8, b"\xef\xbb\xbf{}", 400, "the body is no JSON"),
        (_UTF_8, b'{"seconds": NaN}', 400, "the body is no JSON"),
        (_UTF_8, b'{"seconds": -Infinity}', 400, "the body is no JSON"),
        (_UTF_8, f'{{"seconds": {_HUGE}}}'.encode(), 400, "the body is no JSON"),
        (_UTF_8, (_PAUSE + ', "seconds": 1e999}').encode(), 400, "whole number"),
        (_UTF_8, (_PAUSE + f', "seconds": {"9" * 4_000}}}').encode(), 400, "whole number"),
        (_UTF_8, (_PAUSE + ', "reason": "a\\u0000b"}').encode(), 400, "reason is a text"),
        (_UTF_8, (_PAUSE + ', "engine": "\\u0000"}').encode(), 400, "engine is a text"),
        (_UTF_8, b"[" * 500_000, 400, "the body is no JSON"),
        (_UTF_8, b'{"a":' * 100_000 + b"1" + b"}" * 100_000, 400, "the body is no JSON"),
        (_UTF_8, b"[]", 400, "the body is no JSON object"),
        (_UTF_8, b"", 400, "the body is no JSON"),
    ],
)
def test_a_body_that_is_no_text_is_refused_with_a_sentence(
    agent: AgentProcess, content_type: str, body: bytes, status: int, sentence: str
) -> None:
    """Never a 500: another charset, half a character, NUL, depth, and numbers that JSON does not know."""
    answered, said = _write(agent, body, content_type=content_type)

    assert (answered, sentence in said) == (status, True), said


@pytest.mark.parametrize(
    "text", ["a\0b", "\ud800", "\u202e", "&a [" + "*a," * 50, f"priority: {_HUGE}", ".inf", "a: .nan"]
)
def test_a_manifest_that_is_no_text_is_refused(agent: AgentProcess, text: str) -> None:
    """The same inside of the manifest's YAML."""
    body = {"name": "mine", "manifest": text, "dryRun": True}
    answer = write(page_of(agent), "policy", body, bearer(token_of(agent.admin)))

    assert answer.status == 400
    assert answer.body["error"].isprintable()


_TEXTS = [b"%ff", b"%ed%a0%80", b"%00", b"%e2%80%ae", b"%F0%9F", b"%", b"%zz", b"\xff", b"\xed\xa0\x80"]


@pytest.mark.parametrize("text", _TEXTS)
@pytest.mark.parametrize(
    "target",
    [
        b"/api/events?peer=%s",
        b"/api/events?request=%s",
        b"/api/events?engine=%s",
        b"/api/events?kind=%s",
        b"/api/events?mode=%s",
        b"/api/events?limit=%s",
        b"/api/events?seconds=%s",
        b"/api/request?id=%s",
        b"/api/engine?key=%s",
        b"/api/peer?peer=%s&engine=%s",
        b"/api/policy?name=%s",
        b"/api/stream?seconds=%s",
        b"/api/%s",
        b"/static/%s",
        b"/%s",
    ],
)
def test_a_question_of_any_bytes_is_answered(agent: AgentProcess, target: bytes, text: bytes) -> None:
    """Bytes that are no UTF-8, half characters, NUL and directions: in paths and in queries."""
    status, came = _get(page_of(agent), target.replace(b"%s", text))

    assert status in (200, 400, 403, 404), came[:500]
    assert not _RAW.search(came.decode())


@pytest.mark.parametrize(
    "number", [_HUGE, "1e999", "NaN", "Infinity", "-1", "1_0", "%D9%A1", "0x10", "1.0", "%2B1"]
)
@pytest.mark.parametrize("target", ["/api/events?limit=", "/api/events?seconds=", "/api/stream?seconds="])
def test_a_number_of_a_query_is_digits(agent: AgentProcess, target: str, number: str) -> None:
    """Huge ones are never converted."""
    assert _get(page_of(agent), f"{target}{number}".encode())[0] == 400


@pytest.mark.parametrize("value", [b"\xff", b"\xed\xa0\x80", b"\xe2\x80\xae", b"x\0y", b"%00"])
@pytest.mark.parametrize(
    "name",
    [b"Host", b"Origin", b"Sec-Fetch-Site", b"If-None-Match", b"Content-Type", b"X-User", b"Authorization"],
)
def test_a_header_of_any_bytes_is_answered(
    agent: AgentProcess, proxied: AgentProcess, name: bytes, value: bytes
) -> None:
    """As a client of the agent's own page, and of one behind a proxy."""
    for page in (page_of(agent), page_of(proxied)):
        for target in (b"/", b"/api/policies"):
            own = [b"GET " + target + b" HTTP/1.1", name + b": " + value]
            own += [] if name == b"Host" else [b"Host: localhost"]
            status, came = _exchange(page, b"\r\n".join(own))
            assert status in (200, 400, 403), came[:500]


@pytest.mark.parametrize("position", [b"\xff", b"x\0", b"\xed\xa0\x80", b"9" * 5_000])
def test_a_position_of_any_bytes_starts_over(agent: AgentProcess, position: bytes) -> None:
    """Or is refused as a header; the stream says why."""
    place = urlsplit(page_of(agent))
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=60) as connection:
        connection.sendall(
            b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: " + position + b"\r\n\r\n"
        )
        reader = connection.makefile("rb")
        status = int(reader.readline().split()[1])
        assert status in (200, 400)
        if status == 200:
            assert any(line == b"event: gap\n" for line in reader)


def test_directions_never_leave_as_they_are(fleet: tuple[AgentProcess, list[FakeEngine]]) -> None:
    """Neither in the stream nor in answers; texts show them as agentctl does, and a link still finds the request."""
    agent, engines = fleet
    page = page_of(agent)
    names = [f"cmpl-{character}-{number}" for number, character in enumerate(DIRECTIONS)]
    with Tab(page, patience=60) as tab:
        tab.until("log")
        # The screen lists the oldest.
        long_ago = time.time_ns() - 100_000_000_000
        engines[0].snapshot(snapshot(PEERS, 2 * len(names), long_ago))
        engines[0].publish(
            *(
                transfer_failure(name, peer=f"{name}:1", error_text=name, time_ns=time.time_ns())
                for name in names
            ),
            *(deferral_start(name, peer="10.0.0.1:1", time_ns=long_ago) for name in names),
        )
        shown = [name.encode("unicode_escape").decode() for name in names]
        tab.until_requests(*shown)
        for entry in tab.entries():
            shown_values = [value for name, value in entry.items() if name != "requestId"]
            assert all(str(value).isprintable() for value in shown_values), entry
        ids = {entry["requestId"] for entry in tab.entries() if entry["request"] in shown}
        waits = tab.until("screen", lambda screen: _waiting(screen) >= {*names}).data["waits"]["rows"]
    # What a click on a row asks for.
    assert ids >= {*names}
    for name in {*ids, *(row["requestId"] or row["request"] for row in waits)}:
        assert ask(page, "/api/request", id=name).status == 200, name
    status, came = _get(page, b"/api/events?limit=1000")
    assert status == 200
    assert not _RAW.search(came.decode())
    rows = json.loads(came.partition(b"\r\n\r\n")[2])["sections"][0]["rows"]
    links = {row["link"]["id"]: row for row in rows if row["link"]["kind"] == "request"}
    assert {*names} <= {*links}
    for name in names:
        assert all(cell.isprintable() for cell in links[name]["cells"])
        assert links[name]["command"].isprintable()
        status, came = _get(page, f"/api/request?id={quote(name)}".encode())
        assert status == 200
        assert not _RAW.search(came.decode())
    for path in ("/api/peer", "/api/engine", "/api/policy", "/api/request"):
        answer = ask(page, path, peer=names[0], key=names[0], name=names[0], id=f"no{names[0]}")
        assert answer.status in (400, 404)
        assert answer.body["error"].isprintable()
    raw = _stream_until(page, names[-1].encode("unicode_escape").decode().replace("\\", "\\\\"))
    assert not _RAW.search(raw)


def _waiting(screen: Any) -> set[str]:
    """Return the ids of the requests that wait, as a click on one asks for it."""
    return {row["requestId"] or row["request"] for row in screen["waits"]["rows"]}


def _stream_until(page: str, text: str) -> str:
    """Return what a tab that comes late is sent, up to *text*."""
    place = urlsplit(page)
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=60) as connection:
        connection.sendall(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        came = b""
        while text.encode() not in came:
            part = connection.recv(65536)
            assert part
            came += part
    return came.decode("utf-8", "ignore")


@pytest.mark.parametrize(
    "name", ["\u202egpj.exe", "it's \\ \x1b[31m", "\x7f\x85\u2028", "\U000e0001", "a\nb"]
)
def test_a_command_shows_what_it_runs(name: str) -> None:
    """In bash the word is the name itself."""
    assert words_of(command("explain", name)) == ["explain", name]


def test_texts_are_escaped_and_names_stay() -> None:
    """Line breaks and tabs are a section's own."""
    assert plain("a\u202eb\n\tc\x1b\ud831d") == "a\\u202eb\n\tc\\x1bd"
    for value in (DIRECTIONS, {"\\" + DIRECTIONS: [DIRECTIONS, "é"]}):
        encoded = encode(value)
        assert not _RAW.search(encoded.decode())
        assert json.loads(encoded) == value


def test_a_charset_is_named_as_people_write_it() -> None:
    """In any case; a long one is cut in the sentence."""
    assert json_object(b"{}", "Utf8") == json_object(b"{}", None) == {}
    with pytest.raises(AnswerError) as refused:
        json_object(b"{}", "x" * 1_000)
    assert len(refused.value.sentence) < 120


def test_the_agent_goes_on(agent: AgentProcess) -> None:
    """After all of that: no error of the page's own is in its log."""
    wait_until(lambda: ask(page_of(agent), "/api/policies").status == 200, "it answers")
