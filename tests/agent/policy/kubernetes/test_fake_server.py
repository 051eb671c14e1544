"""The follower beside an API server that does what a real one does not do on demand."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from penstock.agent.errors import ConfigError
from penstock.agent.policy.kubernetes import ClusterAccess, follower, read_pod_access
from penstock.agent.policy.kubernetes.follower import Settling

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
    """Answers each list by *items* and each watch by the next of *watches*; after the last one a watch is quiet."""

    def __init__(self) -> None:
        self.items = [_object("a", 5)]
        # Whether the definition stays, by question; the last one for all that follow.
        self.defined = [True]
        self.refusals: list[web.Response] = []
        self.watches: list[list[bytes] | web.Response] = []
        self.lists = 0
        self.expired = 0
        self.asked: list[str] = []
        self.tokens: list[str] = []
        self.closing = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        self.tokens.append(request.headers.get("Authorization", ""))
        if request.path == "/apis/penstock.dev/v1alpha1":
            stays = self.defined.pop(0) if len(self.defined) > 1 else self.defined[0]
            verbs = ["create", "get", "list", "watch"] if stays else ["get", "list", "watch"]
            return web.json_response({"resources": [{"name": "transferpolicies", "verbs": verbs}]})
        if self.refusals:
            return self.refusals.pop(0)
        if "watch" not in request.query:
            return self._page(request)
        self.asked.append(request.query["resourceVersion"])
        parts = self.watches.pop(0) if self.watches else []
        if isinstance(parts, web.Response):
            return parts
        response = web.StreamResponse()
        await response.prepare(request)
        for part in parts:
            await response.write(part)
            # Mostly, a chunk of its own.
            await asyncio.sleep(0.05)
        if not self.watches:
            # As a quiet watch.
            await self.closing.wait()
        return response

    def _page(self, request: web.Request) -> web.Response:
        self.lists += 1
        first = int(request.query.get("continue", "0"))
        if first and self.expired:
            self.expired -= 1
            return web.json_response({"message": "the continue token is too old"}, status=410)
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
    """250 objects come in thirteen pages; a watch that ends resumes at the last bookmark."""
    fake = FakeServer()
    fake.items = [_object(f"p{number}", number + 1) for number in range(250)]
    bookmark = {"kind": "TransferPolicy", "metadata": {"resourceVersion": "9"}}
    fake.watches = [[_event("BOOKMARK", bookmark)], [_event("DELETED", _object("p0", 10))], []]
    async with _serving(fake, tmp_path / "token") as access, following(access) as sink:
        await sink.until(lambda: bool(sink.sets) and len(sink.sets[-1].objects) == 249)
        assert fake.lists == 13
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
        (lambda: web.json_response({"items": 3}), "is not a list of policies"),
        (lambda: web.json_response({"items": [{}], "metadata": {}}), "is not a list of policies"),
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


async def test_a_second_look_waits_for_a_list_that_succeeds(tmp_path: Path) -> None:
    """A list that fails is no second look; it comes with the next attempt, though the watch could go on."""
    fake = FakeServer()
    async with _serving(fake, tmp_path / "token") as access, following(access) as sink:
        sink.again = 1.0
        await sink.until(lambda: bool(sink.sets) and bool(fake.asked))
        fake.refusals = [web.Response(status=503)]
        await sink.until(lambda: len(sink.sets) == 2)
        assert len(sink.errors) == 1


@pytest.mark.parametrize("deleted", [1, 2])
async def test_a_definition_that_is_deleted_takes_no_policy_along(tmp_path: Path, deleted: int) -> None:
    """Its objects are deleted one by one; none of these deletions counts, nor a list that is short of them."""
    fake = FakeServer()
    fake.items = [_object("a", 5), _object("b", 6), _object("c", 7)]
    gone = [_event("DELETED", _object(name, 8)) for name in ("a", "b")]
    fake.watches = [gone[:deleted]]
    fake.defined = [True, False]
    async with _serving(fake, tmp_path / "token") as access, following(access) as sink:
        await sink.until(lambda: len(sink.sets) == 1)
        fake.items = fake.items[deleted:]
        await sink.until(lambda: "the definition" in (sink.error or ""))
        assert [each.objects.keys() for each in sink.sets] == [{"a", "b", "c"}]
        # It comes back: from now on what the server says counts.
        fake.defined = [True]
        await sink.until(lambda: sink.actions.keys() == {*"abc"[deleted:]})


async def test_deletions_that_follow_each_other_are_one_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All objects are deleted one by one: that is an empty set, which needs a second look, and no set on the way there."""
    # Also where this process has no turn for a while.
    monkeypatch.setattr(follower, "SETTLE_SECONDS", 3.0)
    monkeypatch.setattr(follower, "LONGEST_SECONDS", 30.0)
    fake = FakeServer()
    fake.items = [_object("a", 5), _object("b", 6), _object("c", 7)]
    fake.watches = [[_event("DELETED", _object(name, 8 + number)) for number, name in enumerate("abc")]]
    async with _serving(fake, tmp_path / "token") as access, following(access) as sink:
        await sink.until(lambda: len(sink.sets) == 2)
        assert [set(each.objects) for each in sink.sets] == [{"a", "b", "c"}, set()]
        assert sink.sets[-1].revision == "10"


@pytest.mark.parametrize(
    ("deleted", "until"),
    [
        ([], None),
        ([1.0], 1.5),
        ([1.0, 1.3, 1.7], 2.2),
        # One at a time, for ever: what is gone is gone after 5 s.
        ([1.0 + 0.4 * number for number in range(30)], 6.0),
    ],
)
def test_deletions_settle(deleted: list[float], until: float | None) -> None:
    """Each one waits for the next, for a time; after the set was handed over it begins again."""
    settling = Settling()
    for now in deleted:
        settling.deleted(now)
    assert settling.until == (until if until is None else pytest.approx(until))
    settling.reset()
    assert settling.until is None
    settling.deleted(20.0)
    assert settling.until == 20.5


async def test_a_write_of_status_hands_nothing_over(tmp_path: Path) -> None:
    """The relay writes it again and again; the watch still resumes after it."""
    fake = FakeServer()
    written = {**_object("a", 8), "status": {"matched": 3}}
    fake.watches = [[_event("MODIFIED", written)], [_event("ADDED", _object("b", 9))], []]
    async with _serving(fake, tmp_path / "token") as access, following(access) as sink:
        await sink.until(lambda: sink.actions.keys() == {"a", "b"})
        assert [found.revision for found in sink.sets] == ["7", "9"]
        assert fake.asked[:2] == ["7", "8"]
        assert sink.sets[-1].objects["a"].revision == "8"


async def test_an_old_revision_after_an_outage_costs_no_further_pause(tmp_path: Path) -> None:
    """All is listed at once: the server answers again."""
    fake = FakeServer()
    gone = _event("ERROR", {"kind": "Status", "code": 410, "message": "too old"})
    fake.watches = [[], web.Response(status=503), web.Response(status=429), [gone], []]
    async with _serving(fake, tmp_path / "token") as access, following(access) as sink:
        await sink.until(lambda: len(sink.sets) == 2)
        assert ["503" in error or "429" in error for error in sink.errors] == [True, True]
        assert sink.error is None


async def test_an_expired_continuation_begins_the_list_again(tmp_path: Path) -> None:
    """No page of before is mixed with one of after."""
    fake = FakeServer()
    fake.items = [_object(f"p{number}", number + 1) for number in range(150)]
    fake.expired = 2
    async with _serving(fake, tmp_path / "token") as access, following(access) as sink:
        await sink.until(lambda: bool(sink.sets))
        assert [len(found.objects) for found in sink.sets] == [150]
        assert fake.expired == 0


async def test_a_watch_that_breaks_after_each_list_is_paced(tmp_path: Path) -> None:
    """Events in between are no progress that would let it list without a pause."""
    fake = FakeServer()
    bookmark = _event("BOOKMARK", {"kind": "TransferPolicy", "metadata": {"resourceVersion": "9"}})
    fake.watches = [*([bookmark, b"{not json\n"] for _ in range(3)), []]
    async with _serving(fake, tmp_path / "token") as access, following(access) as sink:
        await sink.until(lambda: fake.lists == 4)
        assert len(sink.errors) == 3


async def test_a_large_object_is_refused_and_the_others_hold(tmp_path: Path) -> None:
    """Its manifest is not kept; the sentence says the limit."""
    fake = FakeServer()
    large = document("b", reason="x" * (64 * 1024))
    large["metadata"]["resourceVersion"] = "6"
    fake.items.append(large)
    async with _serving(fake, tmp_path / "token") as access, following(access) as sink:
        await sink.until(lambda: bool(sink.sets))
        found = sink.sets[-1].objects
        assert found["a"].refusal == ""
        assert "more than 64 KiB" in found["b"].refusal
        assert found["b"].manifest == {}


async def test_objects_of_any_size_are_listed(tmp_path: Path) -> None:
    """Annotations of others may fill what etcd takes: who may write objects cannot stop the list."""
    fake = FakeServer()
    fake.items = [_object(f"p{number}", number + 1) for number in range(30)]
    for item in fake.items:
        item["metadata"]["annotations"] = {"example.com/large": "x" * (1_400 << 10)}
    async with _serving(fake, tmp_path / "token") as access, following(access) as sink:
        await sink.until(lambda: bool(sink.sets))
        assert len(sink.sets[-1].objects) == 30
        assert sink.errors == []


async def test_a_token_swapped_by_its_directory_is_read(tmp_path: Path) -> None:
    """As the kubelet rotates it: ``token`` is a link below ``..data``, which is a link that is replaced."""
    fake = FakeServer()
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(name)
    (tmp_path / "..data").symlink_to("first")
    (tmp_path / "token").symlink_to("..data/token")
    fake.watches = [[]] * 40
    async with _serving(fake, tmp_path / "unused") as served:
        access = ClusterAccess(served.url, served.namespace, tmp_path / "token")
        async with following(access) as sink:
            await sink.until(lambda: bool(fake.asked))
            (tmp_path / "..new").symlink_to("second")
            (tmp_path / "..new").replace(tmp_path / "..data")
            await sink.until(lambda: "Bearer second" in fake.tokens)
            assert set(fake.tokens) == {"Bearer first", "Bearer second"}
            (tmp_path / "..data").unlink()
            await sink.until(lambda: "cannot be read: No such file" in (sink.error or ""))


async def test_a_refusal_without_a_token_names_no_file(tmp_path: Path) -> None:
    """The reason is that there is none."""
    fake = FakeServer()
    fake.refusals = [web.Response(status=401)]
    async with (
        _serving(fake, tmp_path / "token") as served,
        following(ClusterAccess(served.url, "ns")) as sink,
    ):
        await sink.until(lambda: bool(sink.sets))
        assert "--kube-token-file" in sink.errors[0]


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
