"""The follower beside an API server that does what a real one does not do on demand."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from penstock.agent.errors import ConfigError
from penstock.agent.policy.kubernetes import ClusterAccess, read_pod_access

from tests.support.kubernetes.sink import following
from tests.support.policy.policies import action, document

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


def _object(name: str, revision: int, **spec: Any) -> dict[str, Any]:
    made = document(name, **spec)
    made["metadata"]["resourceVersion"] = str(revision)
    return made


def _event(kind: str, value: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": value}).encode() + b"\n"


class FakeServer:
    """Answers lists from *pages* and each watch by the next of *watches*, the last one again and again."""

    def __init__(self) -> None:
        self.items = [_object("a", 5)]
        self.refusals: list[web.Response] = []
        self.watches: list[list[bytes]] = []
        self.lists = 0
        self.asked: list[str] = []
        self.tokens: list[str] = []
        self.closing = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        self.tokens.append(request.headers.get("Authorization", ""))
        if self.refusals:
            return self.refusals.pop(0)
        if "watch" not in request.query:
            return self._page(request)
        self.asked.append(request.query["resourceVersion"])
        response = web.StreamResponse()
        await response.prepare(request)
        for part in self.watches.pop(0) if self.watches else []:
            await response.write(part)
        if not self.watches:
            # As a quiet watch.
            await self.closing.wait()
        return response

    def _page(self, request: web.Request) -> web.Response:
        self.lists += 1
        first = int(request.query.get("continue", "0"))
        size = int(request.query["limit"])
        rest = str(first + size) if first + size < len(self.items) else ""
        metadata = {"resourceVersion": "7", "continue": rest}
        return web.json_response({"metadata": metadata, "items": self.items[first : first + size]})


@asynccontextmanager
async def _serving(fake: FakeServer, token: Path) -> AsyncIterator[ClusterAccess]:
    application = web.Application()
    application.router.add_get("/{path:.*}", fake.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    token.write_text("secret\n")  # noqa: ASYNC240  (a temporary file)
    try:
        yield ClusterAccess(f"http://127.0.0.1:{runner.addresses[0][1]}", "ns", token)
    finally:
        fake.closing.set()
        await runner.cleanup()


async def test_pages_and_bookmarks(tmp_path: Path) -> None:
    """250 objects come in three pages; a watch that ends resumes at the last bookmark."""
    fake = FakeServer()
    fake.items = [_object(f"p{number}", number + 1) for number in range(250)]
    bookmark = {"kind": "TransferPolicy", "metadata": {"resourceVersion": "9"}}
    fake.watches = [[_event("BOOKMARK", bookmark)], [_event("DELETED", _object("p0", 10))], []]
    async with _serving(fake, tmp_path / "token") as access, following(access) as sink:
        await sink.until(lambda: bool(sink.sets) and len(sink.sets[-1].objects) == 249)
        assert fake.lists == 3
        assert fake.asked[:2] == ["7", "9"]
        assert set(fake.tokens) == {"Bearer secret"}
        assert sink.errors == []


async def test_too_many_objects_are_no_set(tmp_path: Path) -> None:
    """More than the agent stores: nothing is handed over."""
    fake = FakeServer()
    fake.items = [_object(f"p{number}", number + 1) for number in range(300)]
    async with _serving(fake, tmp_path / "token") as access, following(access) as sink:
        await sink.until(lambda: "more than 256 TransferPolicy objects" in (sink.error or ""))
        assert sink.sets == []


@pytest.mark.parametrize(
    "spoilt",
    [
        [_event("ERROR", {"kind": "Status", "code": 410, "message": "too old"})],
        [b"{not json\n"],
        [b'["list"]\n'],
        [b'{"type": "ADDED", "object": {"metadata": 3}}\n'],
        [b"x" * (1 << 20)] * 3,
        [_event("ADDED", {"metadata": {"name": "b"}})],
    ],
    ids=["gone", "no-json", "no-event", "no-object", "endless", "no-revision"],
)
async def test_after_a_spoilt_watch_all_is_listed_again(tmp_path: Path, spoilt: list[bytes]) -> None:
    """What comes after it is in force, and nothing was lost."""
    fake = FakeServer()
    fake.watches = [spoilt, [_event("MODIFIED", _object("a", 8, kvLoadFailure=action("fail")))], []]
    async with _serving(fake, tmp_path / "token") as access, following(access) as sink:
        await sink.until(lambda: sink.actions == {"a": "fail"})
        assert fake.lists == 2
        assert all("a" in found.objects for found in sink.sets)


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (lambda: web.Response(status=429, headers={"Retry-After": "1"}), "answered 429"),
        (lambda: web.json_response({"message": "etcd\nis away"}, status=503), "answered 503: etcd is away"),
        (lambda: web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}), "answered 302"),
        (lambda: web.Response(status=401), "does not accept the token"),
        (lambda: web.Response(status=403), "may not list TransferPolicy objects in namespace ns (403)"),
        (lambda: web.Response(status=404), "apply deploy/crd"),
        (lambda: web.Response(text="<html>"), "is not JSON"),
        (lambda: web.json_response({"items": 3}), "is not one of policies"),
        (lambda: web.json_response({"items": [{}], "metadata": {}}), "is not one of policies"),
    ],
)
async def test_a_refused_list_is_asked_again(
    tmp_path: Path, refusal: Callable[[], web.Response], said: str
) -> None:
    """With a sentence meanwhile."""
    fake = FakeServer()
    fake.refusals = [refusal()]
    async with _serving(fake, tmp_path / "token") as access, following(access) as sink:
        await sink.until(lambda: sink.actions == {"a": "recompute"})
        assert said in sink.errors[0]
        assert sink.error is None
        assert "secret" not in "".join(sink.errors)


async def test_a_second_look_is_a_list(tmp_path: Path) -> None:
    """Who asks for one gets all objects again, though nothing changed."""
    fake = FakeServer()
    async with _serving(fake, tmp_path / "token") as access, following(access) as sink:
        sink.again = 0.1
        await sink.until(lambda: len(sink.sets) == 2)
        assert fake.lists == 2


def test_access_of_a_pod(tmp_path: Path) -> None:
    """From the environment and the mounted files; what is missing is named."""
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    with pytest.raises(ConfigError, match="is not set, so this is no pod"):
        read_pod_access({}, "", tmp_path)
    with pytest.raises(ConfigError, match="mount a service account token"):
        read_pod_access(environment, "", tmp_path)
    (tmp_path / "token").write_text("t")
    with pytest.raises(ConfigError, match="write kubernetes:NAMESPACE"):
        read_pod_access(environment, "", tmp_path)
    (tmp_path / "namespace").write_text("serving\n")
    access = read_pod_access(environment, "", tmp_path)
    assert (access.url, access.namespace) == ("https://[fd00::1]:6443", "serving")
    assert read_pod_access(environment, "other", tmp_path).namespace == "other"
