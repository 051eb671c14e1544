"""Policies in a bucket of a real nats-server: changes, mistakes, and servers that go away."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import nats
import pytest
from nats.js.client import JetStreamContext
from nats.js.errors import BucketNotFoundError
from penstock.agent.errors import ConflictError, NotFoundError
from penstock.agent.policy.manifest import check_manifest
from penstock.agent.policy.sources import SourceItem, SourceSet, follower
from penstock.agent.policy.sources.nats import entries, source
from penstock.agent.policy.sources.nats.connection import NatsAccess
from penstock.agent.policy.sources.nats.source import DecodedValues, NatsSource, decode_item, read_bucket
from penstock.agent.policy.sources.nats.writer import delete_policy, put_policy

from tests.support.nats.cluster import NatsCluster
from tests.support.nats.following import BUCKET, NAME, bucket_of, following, is_away, reached, until, value
from tests.support.nats.server import NatsServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from penstock.agent.policy.store.database import PolicyDatabase


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    """Start a server with JetStream; kill it after the test."""
    started = NatsServer(tmp_path / "nats").start()
    yield started
    started.kill()


async def test_policies_follow_the_bucket(server: NatsServer, database: PolicyDatabase) -> None:
    """JSON and YAML; changes, deletions and purges; the revision is of the bucket."""
    async with bucket_of(server) as bucket:
        await bucket.put("a", value("a"))
        async with following(database, server.url) as followed:
            await until(reached(followed, 1), "the first revision")
            assert followed.items() == {"a": 1}
            assert {each.owner for each in followed.store.policies()} == {NAME}
            assert (followed.state.state, followed.state.revision, followed.state.accepted) == (
                "connected",
                "1",
                1,
            )
            await bucket.put("b", b"# by hand\n" + value("b", 2))
            await bucket.put("a", value("a", 3))
            await followed.shows({"a": 3, "b": 2})
            await bucket.delete("a")
            await followed.shows({"b": 2})
            await bucket.put("c", value("c"))
            await bucket.purge("b")
            await followed.shows({"c": 1})


async def test_a_garbled_value_keeps_the_last_good_one(server: NatsServer, database: PolicyDatabase) -> None:
    """The sentence is at the source; others go on; a mended value is in force."""
    async with bucket_of(server) as bucket:
        await bucket.put("a", value("a"))
        await bucket.put("b", value("b"))
        async with following(database, server.url) as followed:
            await followed.shows({"a": 1, "b": 1})
            for garbled in (
                b"\xff\xfe",
                b"{",
                b"kind: Pod\n",
                value("x"),
                b"a: 1\n---\nb: 2\n",
                b"x" * 70_000,
                b"[" * 60_000,
                b"[" + b"1," * 30_000 + b"]",
            ):
                await bucket.put("a", garbled)
                revision = (await bucket.get("a")).revision
                await until(reached(followed, revision), "the garbled value")
                assert followed.items() == {"a": 1, "b": 1}
                assert set(followed.state.refused) == {"a"}
            await bucket.put("b", value("b", 2))
            await followed.shows({"a": 1, "b": 2})
            # The state is set after the policies.
            await until(reached(followed, await bucket.put("a", value("a", 3))), "the mended value")
            assert followed.items() == {"a": 3, "b": 2}
            assert not followed.state.refused


class _Sink:
    """Keeps the sets that a source hands over."""

    def __init__(self) -> None:
        self.sets: list[SourceSet] = []

    def connected(self) -> None:
        pass

    def away(self, error: str) -> None:
        raise AssertionError(error)

    async def hand_over(self, found: SourceSet) -> float:
        self.sets.append(found)
        return 0.0

    def waiting(self, number: int) -> set[str]:
        """Return the keys that are not decoded yet in a set."""
        return {key for key, item in self.sets[number].items.items() if item.waits}


@asynccontextmanager
async def _handed_over(server: NatsServer) -> AsyncIterator[_Sink]:
    """Run a source of the bucket whose sets are kept."""
    sink = _Sink()
    task = asyncio.ensure_future(NatsSource(NAME, NatsAccess((server.url,)), BUCKET).run(sink))
    try:
        yield sink
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_short_values_are_handed_over_before_long_ones_are_decoded(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value that takes long delays no other; each is decoded once, whatever else changes."""
    decoded: list[bytes] = []

    def counted(written: bytes, revision: str) -> SourceItem:
        decoded.append(written)
        return decode_item(written, revision)

    monkeypatch.setattr(source, "decode_item", counted)
    monkeypatch.setattr(source, "TURN_BYTES", 3_500)
    long = {name: value(name) + b"\n# " + b"x" * 2_000 for name in ("long1", "long2", "long3")}
    async with bucket_of(server) as bucket:
        for name, written in {**long, "a": value("a"), "b": value("b")}.items():
            await bucket.put(name, written)
        async with _handed_over(server) as sink:
            await until(lambda: len(sink.sets) >= 3, "all are decoded")
            assert [sink.waiting(number) for number in range(3)] == [{"long2", "long3"}, {"long3"}, set()]
            assert {key for key, item in sink.sets[0].items.items() if item.document} == {"long1", "a", "b"}
            await bucket.put("a", value("a", 2))
            await until(lambda: len(sink.sets) >= 4, "the change")
    assert sorted(decoded) == sorted([*long.values(), value("a"), value("b"), value("a", 2)])
    assert sink.sets[3].items["long1"] is sink.sets[2].items["long1"]


async def test_a_value_is_decoded_beside_the_loop(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop works while a value is decoded: here it ends the decoding."""
    decoding, go_on = threading.Event(), threading.Event()

    def held(written: bytes, revision: str) -> SourceItem:
        decoding.set()
        assert go_on.wait(60)
        return decode_item(written, revision)

    monkeypatch.setattr(source, "decode_item", held)
    async with bucket_of(server) as bucket, _handed_over(server) as sink:
        await bucket.put("a", value("a"))
        await until(decoding.is_set, "the value is being decoded")
        go_on.set()
        await until(lambda: any(each.items for each in sink.sets), "it is handed over")


async def test_an_emptied_bucket_needs_a_second_look(
    server: NatsServer, database: PolicyDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then its policies are withdrawn; a value that comes meanwhile keeps the rest of the order."""
    monkeypatch.setattr(follower, "SECOND_LOOK_SECONDS", 3.0)
    async with bucket_of(server) as bucket:
        await bucket.put("a", value("a"))
        async with following(database, server.url) as followed:
            await followed.shows({"a": 1})
            await bucket.purge("a")
            await until(lambda: "is empty after it was not" in followed.state.error, "the first look")
            assert followed.items() == {"a": 1}
            await followed.shows({})
            await until(lambda: followed.state.error == "", "the second look")


async def test_a_deleted_bucket_withdraws_nothing(server: NatsServer, database: PolicyDatabase) -> None:
    """The state says how to create it; then it is followed again."""
    async with bucket_of(server) as bucket:
        await bucket.put("a", value("a"))
        async with following(database, server.url) as followed:
            await followed.shows({"a": 1})
            async with await server.client() as client:
                await client.jetstream().delete_key_value(BUCKET)
            await until(lambda: "nats kv add policies" in followed.state.error, "the missing bucket")
            assert (followed.state.state, followed.items()) == ("away", {"a": 1})
            async with bucket_of(server) as new:
                await new.put("b", value("b"))
            await followed.shows({"b": 1})


async def test_a_bucket_that_is_deleted_while_it_is_read(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no bucket without keys."""
    async with bucket_of(server) as bucket, await server.client() as client:
        await bucket.put("a", value("a"))
        stream = client.jetstream()
        assert await entries.read_entry(stream, BUCKET, "missing") is None
        ask = JetStreamContext.get_msg

        async def delete_first(stream: JetStreamContext, *args: Any, **more: Any) -> Any:
            await stream.delete_key_value(BUCKET)
            return await ask(stream, *args, **more)

        monkeypatch.setattr(JetStreamContext, "get_msg", delete_first)
        with pytest.raises(BucketNotFoundError):
            await read_bucket(stream, BUCKET, DecodedValues())


async def test_a_bucket_that_changes_while_it_is_read(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read again: a policy that moves to another key is in one of them; one that never rests has an end, too."""
    async with bucket_of(server) as bucket, await server.client() as client:
        await bucket.put("a", value("a"))
        stream = client.jetstream()
        ask = JetStreamContext.get_msg
        changes = [("b", value("b")), ("a", None)]
        reads = 0

        async def change_first(stream: JetStreamContext, *args: Any, **more: Any) -> Any:
            nonlocal reads
            reads += 1
            if changes:
                key, written = changes.pop(0)
                await (bucket.delete(key) if written is None else bucket.put(key, written))
            return await ask(stream, *args, **more)

        monkeypatch.setattr(JetStreamContext, "get_msg", change_first)
        # The first read sees neither of both keys, the second ends with the move.
        found = await read_bucket(stream, BUCKET, DecodedValues())
        assert set(found.items) == {"b"}
        changes += [("c", value("c", number)) for number in range(100)]
        reads = 0
        assert set((await read_bucket(stream, BUCKET, DecodedValues())).items) >= {"b"}
        assert reads < len(changes)


async def test_an_entry_without_an_answer_withdraws_nothing(
    server: NatsServer, database: PolicyDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer is lost between the server and the client: the source is away until the bucket is read again."""
    ask = JetStreamContext.get_msg
    lossy = False

    async def lose_b(stream: JetStreamContext, *args: Any, subject: str = "", **more: Any) -> Any:
        if lossy and subject.endswith(".b"):
            raise nats.errors.TimeoutError
        return await ask(stream, *args, subject=subject, **more)

    monkeypatch.setattr(JetStreamContext, "get_msg", lose_b)
    async with bucket_of(server) as bucket:
        for name in ("a", "b", "gone"):
            await bucket.put(name, value(name))
        await bucket.delete("gone")
        async with following(database, server.url) as followed:
            await followed.shows({"a": 1, "b": 1})
            lossy = True
            await bucket.put("c", value("c"))
            await until(is_away(followed), "the answer that is missing")
            assert followed.items() == {"a": 1, "b": 1}
            lossy = False
            await followed.shows({"a": 1, "b": 1, "c": 1})


async def test_a_bucket_with_too_many_keys_withdraws_nothing(
    server: NatsServer, database: PolicyDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marks of deleted keys count; the state says how to remove them."""
    monkeypatch.setattr(entries, "MAX_KEYS", 3)
    async with bucket_of(server) as bucket:
        await bucket.put("a", value("a"))
        async with following(database, server.url) as followed:
            await followed.shows({"a": 1})
            for name in ("x", "y", "z"):
                await bucket.delete(name)
            await until(lambda: "nats kv compact" in followed.state.error, "too many keys")
            assert followed.items() == {"a": 1}


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_a_server_that_goes_away(server: NatsServer, database: PolicyDatabase, how: str) -> None:
    """Killed, or halted so that its connections stay: the last set stays; afterwards changes are in force again."""
    async with bucket_of(server) as bucket:
        await bucket.put("a", value("a"))
    async with following(database, server.url) as followed:
        await followed.shows({"a": 1})
        if how == "kill":
            server.kill()
        else:
            server.stop()
        await until(lambda: followed.state.state == "away", "away")
        assert followed.items() == {"a": 1}
        if how == "kill":
            server.start()
        else:
            server.go_on()
        async with bucket_of(server) as bucket:
            await bucket.put("a", value("a", 5))
        await followed.shows({"a": 5})
        assert followed.state.state == "connected"


async def test_a_start_without_the_server_has_the_last_set(
    server: NatsServer, database: PolicyDatabase
) -> None:
    """It is in the policy database."""
    async with bucket_of(server) as bucket:
        await bucket.put("a", value("a"))
    async with following(database, server.url) as followed:
        await followed.shows({"a": 1})
    server.kill()
    async with following(database, server.url) as followed:
        # The start waits for it, but not for long.
        await until(is_away(followed), "away")
        assert followed.items() == {"a": 1}
        assert "cannot be reached" in followed.state.error


@pytest.mark.long
async def test_a_cluster_whose_nodes_are_killed(tmp_path: Path, database: PolicyDatabase) -> None:
    """One node after another: with two of three left, a change is in force."""
    cluster = NatsCluster(tmp_path).start()
    servers = list(cluster.servers.values())
    try:

        async def write(items: int) -> None:
            for _ in range(120):
                for server in servers:
                    try:
                        async with asyncio.timeout(10), bucket_of(server, replicas=3) as bucket:
                            await bucket.put("a", value("a", items))
                            return
                    except Exception:  # noqa: BLE001  (no leader yet, or a killed node)
                        continue
                await asyncio.sleep(0.25)
            raise AssertionError("the cluster takes no write")

        await write(1)
        async with following(database, *(server.url for server in servers)) as followed:
            await followed.shows({"a": 1})
            for number, server in enumerate(servers):
                server.kill()
                await write(10 + number)
                await followed.shows({"a": 10 + number})
                server.start()
    finally:
        cluster.kill()


async def test_writes_compare_and_set(server: NatsServer) -> None:
    """A write at an old revision is refused; the history has all."""
    one = check_manifest(json.loads(value("a")))
    two = check_manifest(json.loads(value("a", 2)))
    async with bucket_of(server) as bucket:
        first = await put_policy(bucket, one, 0)
        with pytest.raises(ConflictError, match="is not absent"):
            await put_policy(bucket, two, 0)
        second = await put_policy(bucket, two, first)
        with pytest.raises(ConflictError, match="is not at revision 1"):
            await put_policy(bucket, one, first)
        with pytest.raises(ConflictError):
            await delete_policy(bucket, "a", first)
        await delete_policy(bucket, "a", second)
        with pytest.raises(NotFoundError):
            await delete_policy(bucket, "a", second)
        assert [each.operation for each in await bucket.history("a")] == [None, None, "DEL"]
        assert await put_policy(bucket, one, 0) > second
