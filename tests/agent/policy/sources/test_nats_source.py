"""Policies in a bucket of a real nats-server: changes, mistakes, and servers that go away."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from nats.js.api import KeyValueConfig
from nats.js.kv import KeyValue
from penstock.agent.errors import ConflictError, NotFoundError
from penstock.agent.policy.manifest import check_manifest
from penstock.agent.policy.sources import second_look
from penstock.agent.policy.sources.follower import SourceFollower
from penstock.agent.policy.sources.nats import source as nats_source
from penstock.agent.policy.sources.nats.connection import NatsAccess
from penstock.agent.policy.sources.nats.source import NatsSource
from penstock.agent.policy.sources.nats.writer import delete_policy, put_policy
from penstock.agent.policy.store.sqlite_store import PolicyStore

from tests.support.nats.cluster import users_of_guide
from tests.support.nats.server import NatsServer, free_ports
from tests.support.policy.policies import action, document

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from penstock.agent.policy.sources.interface import SourceState
    from penstock.agent.policy.store.database import PolicyDatabase

BUCKET = "policies"
NAME = "nats://test/policies"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    """Start a server with JetStream; kill it after the test."""
    started = NatsServer(tmp_path / "nats").start()
    yield started
    started.kill()


async def until(condition: Callable[[], object], what: str, deadline: float = 60.0) -> None:
    """Wait on the loop until *condition* is true."""
    end = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < end, f"not within {deadline} s: {what}"
        await asyncio.sleep(0.02)


def _value(name: str, items: int = 1) -> bytes:
    return json.dumps(document(name, ecLoadFailure={**action("auto"), "maxRecomputeItems": items})).encode()


class Followed:
    """A follower with its only source, on a store."""

    def __init__(self, store: PolicyStore, access: NatsAccess) -> None:
        self.store = store
        self.follower = SourceFollower([NatsSource(NAME, access, BUCKET)], store)

    @property
    def state(self) -> SourceState:
        """Return the source's state."""
        (state,) = self.follower.states()
        return state

    def items(self) -> dict[str, int | None]:
        """Return what the test changes, by policy."""
        return {
            each.manifest.name: json.loads(each.manifest.canonical)["spec"]["ecLoadFailure"][
                "maxRecomputeItems"
            ]
            for each in self.store.policies()
        }

    async def shows(self, items: dict[str, int]) -> None:
        """Wait until these policies are in the store."""
        await until(lambda: self.items() == items, f"the policies {items}, not {self.items()}")


def _is_away(followed: Followed) -> Callable[[], bool]:
    return lambda: followed.state.state == "away"


def _reached(followed: Followed, revision: int) -> Callable[[], bool]:
    return lambda: int(followed.state.revision or 0) >= revision


@asynccontextmanager
async def following(database: PolicyDatabase, *servers: str, **access: Any) -> AsyncIterator[Followed]:
    """Follow the bucket with a store of the database."""
    followed = Followed(PolicyStore(database), NatsAccess(servers, **access))
    await followed.follower.start()
    try:
        yield followed
    finally:
        await followed.follower.stop()


@asynccontextmanager
async def bucket_of(server: NatsServer, **options: Any) -> AsyncIterator[Any]:
    """Create the bucket with a history of 8, or open it."""
    client = await server.client()
    try:
        replicas = options.pop("replicas", 1)
        yield await client.jetstream().create_key_value(
            KeyValueConfig(bucket=BUCKET, history=8, replicas=replicas)
        )
    finally:
        await client.close()


async def test_policies_follow_the_bucket(server: NatsServer, database: PolicyDatabase) -> None:
    """JSON and YAML; changes, deletions and purges; the revision is of the bucket."""
    async with bucket_of(server) as bucket:
        await bucket.put("a", _value("a"))
        async with following(database, server.url) as followed:
            await followed.shows({"a": 1})
            assert {each.owner for each in followed.store.policies()} == {NAME}
            assert (followed.state.state, followed.state.revision, followed.state.accepted) == (
                "connected",
                "1",
                1,
            )
            await bucket.put("b", b"# by hand\n" + _value("b", 2))
            await bucket.put("a", _value("a", 3))
            await followed.shows({"a": 3, "b": 2})
            await bucket.delete("a")
            await followed.shows({"b": 2})
            await bucket.put("c", _value("c"))
            await bucket.purge("b")
            await followed.shows({"c": 1})


async def test_a_garbled_value_keeps_the_last_good_one(server: NatsServer, database: PolicyDatabase) -> None:
    """The sentence is at the source; others go on; a mended value is in force."""
    async with bucket_of(server) as bucket:
        await bucket.put("a", _value("a"))
        await bucket.put("b", _value("b"))
        async with following(database, server.url) as followed:
            await followed.shows({"a": 1, "b": 1})
            for garbled in (
                b"\xff\xfe",
                b"{",
                b"kind: Pod\n",
                _value("x"),
                b"a: 1\n---\nb: 2\n",
                b"x" * 70_000,
            ):
                await bucket.put("a", garbled)
                revision = (await bucket.get("a")).revision
                await until(_reached(followed, revision), "the garbled value")
                assert followed.items() == {"a": 1, "b": 1}
                assert set(followed.state.refused) == {"a"}
            await bucket.put("b", _value("b", 2))
            await followed.shows({"a": 1, "b": 2})
            await bucket.put("a", _value("a", 3))
            await followed.shows({"a": 3, "b": 2})
            assert not followed.state.refused


async def test_an_emptied_bucket_needs_a_second_look(
    server: NatsServer, database: PolicyDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then its policies are withdrawn; a value that comes meanwhile keeps the rest of the order."""
    monkeypatch.setattr(second_look, "SECOND_LOOK_SECONDS", 3.0)
    async with bucket_of(server) as bucket:
        await bucket.put("a", _value("a"))
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
        await bucket.put("a", _value("a"))
        async with following(database, server.url) as followed:
            await followed.shows({"a": 1})
            client = await server.client()
            await client.jetstream().delete_key_value(BUCKET)
            await client.close()
            await until(lambda: "nats kv add policies" in followed.state.error, "the missing bucket")
            assert (followed.state.state, followed.items()) == ("away", {"a": 1})
            async with bucket_of(server) as new:
                await new.put("b", _value("b"))
            await followed.shows({"b": 1})


async def test_an_incomplete_list_withdraws_nothing(
    server: NatsServer, database: PolicyDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message of the list is lost between the server and the client: the list is read again."""
    updates = KeyValue.KeyWatcher.updates
    lossy = False

    async def lose_b(watcher: KeyValue.KeyWatcher, limit: float = 5.0) -> Any:
        entry = await updates(watcher, limit)
        return await updates(watcher, limit) if lossy and entry and entry.key == "b" else entry

    monkeypatch.setattr(KeyValue.KeyWatcher, "updates", lose_b)
    async with bucket_of(server) as bucket:
        for name in ("a", "b", "gone"):
            await bucket.put(name, _value(name))
        await bucket.delete("gone")
        async with following(database, server.url) as followed:
            await followed.shows({"a": 1, "b": 1})
            lossy = True
            await bucket.put("c", _value("c"))
            await until(lambda: "has 3 of 4 keys" in followed.state.error, "the incomplete list")
            assert followed.items() == {"a": 1, "b": 1}
            lossy = False
            await followed.shows({"a": 1, "b": 1, "c": 1})


async def test_a_list_of_a_replica_that_is_behind_is_read_again(
    server: NatsServer, database: PolicyDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has all keys, but does not end with the stream's last message."""
    monkeypatch.setattr(nats_source, "AGAIN_SECONDS", 0.5)
    updates = KeyValue.KeyWatcher.updates
    old: dict[str, Any] = {}
    behind = False

    async def late(watcher: KeyValue.KeyWatcher, limit: float = 5.0) -> Any:
        entry = await updates(watcher, limit)
        if entry is None:
            return None
        return old[entry.key] if behind else old.setdefault(entry.key, entry)

    monkeypatch.setattr(KeyValue.KeyWatcher, "updates", late)
    async with bucket_of(server) as bucket:
        await bucket.put("a", _value("a"))
        async with following(database, server.url) as followed:
            await followed.shows({"a": 1})
            behind = True
            revision = await bucket.put("a", _value("a", 2))
            await until(_reached(followed, revision), "the list of the replica")
            assert followed.items() == {"a": 1}
            old.clear()
            behind = False
            await followed.shows({"a": 2})


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_a_server_that_goes_away(server: NatsServer, database: PolicyDatabase, how: str) -> None:
    """Killed, or halted so that its connections stay: the last set stays; afterwards changes are in force again."""
    async with bucket_of(server) as bucket:
        await bucket.put("a", _value("a"))
    async with following(database, server.url) as followed:
        await followed.shows({"a": 1})
        if how == "kill":
            server.kill()
        else:
            server.signal(signal.SIGSTOP)
        await until(lambda: followed.state.state == "away", "away")
        assert followed.items() == {"a": 1}
        if how == "kill":
            server.start()
        else:
            server.signal(signal.SIGCONT)
        async with bucket_of(server) as bucket:
            await bucket.put("a", _value("a", 5))
        await followed.shows({"a": 5})
        assert followed.state.state == "connected"


async def test_a_start_without_the_server_has_the_last_set(
    server: NatsServer, database: PolicyDatabase
) -> None:
    """It is in the policy database."""
    async with bucket_of(server) as bucket:
        await bucket.put("a", _value("a"))
    async with following(database, server.url) as followed:
        await followed.shows({"a": 1})
    server.kill()
    async with following(database, server.url) as followed:
        assert followed.state.state == "away"
        assert followed.items() == {"a": 1}
        assert "cannot be reached" in followed.state.error


async def test_wrong_credentials(tmp_path: Path, database: PolicyDatabase) -> None:
    """They are said without the password; right ones work."""
    config = 'authorization: {users: [{user: agent, password: "right"}]}'
    server = NatsServer(tmp_path / "nats", config=config).start()
    try:
        async with following(database, server.url, user="agent", password="wrong") as followed:
            await until(lambda: "refuses the credentials" in followed.state.error, followed.state.error)
            assert "wrong" not in followed.state.error
        client = await server.client(user="agent", password="right")
        bucket = await client.jetstream().create_key_value(KeyValueConfig(bucket=BUCKET))
        await bucket.put("a", _value("a"))
        await client.close()
        async with following(database, server.url, user="agent", password="right") as followed:
            await followed.shows({"a": 1})
    finally:
        server.kill()


async def test_the_permissions_of_the_guide_are_enough(tmp_path: Path, database: PolicyDatabase) -> None:
    """They allow to follow the bucket, and no write to it."""
    server = NatsServer(tmp_path / "nats", config=users_of_guide()).start()
    operator = await server.client(user="ops", password="o")
    try:
        bucket = await operator.jetstream().create_key_value(KeyValueConfig(bucket=BUCKET))
        await bucket.put("a", _value("a"))
        async with following(database, server.url, user="agent", password="a") as followed:
            await followed.shows({"a": 1})
            await bucket.put("a", _value("a", 2))
            await followed.shows({"a": 2})
            agent = await server.client(user="agent", password="a", error_cb=_ignore)
            await agent.publish(f"$KV.{BUCKET}.a", b"")
            await agent.flush()
            await agent.close()
            assert (await bucket.get("a")).value == _value("a", 2)
    finally:
        await operator.close()
        server.kill()


async def _ignore(_: Exception) -> None: ...


async def test_tls_with_a_certificate_of_the_client(tmp_path: Path, database: PolicyDatabase) -> None:
    """Both sides are verified; a client without a certificate, or of another authority, is away."""
    authority, other = trustme.CA(), trustme.CA()
    served, mine = authority.issue_cert("127.0.0.1"), authority.issue_cert("agent")
    files = {
        name: tmp_path / f"{name}.pem" for name in ("ca", "other", "server", "server-key", "cert", "key")
    }
    authority.cert_pem.write_to_path(files["ca"])
    other.cert_pem.write_to_path(files["other"])
    served.cert_chain_pems[0].write_to_path(files["server"])
    served.private_key_pem.write_to_path(files["server-key"])
    mine.cert_chain_pems[0].write_to_path(files["cert"])
    mine.private_key_pem.write_to_path(files["key"])
    config = (
        f'tls: {{cert_file: "{files["server"]}", key_file: "{files["server-key"]}", '
        f'ca_file: "{files["ca"]}", verify: true}}'
    )
    server = NatsServer(tmp_path / "nats", config=config).start()
    url = server.url.replace("nats://", "tls://")
    pair: dict[str, Any] = {"cert": files["cert"], "key": files["key"]}
    try:
        access = NatsAccess((url,), ca=files["ca"], **pair)
        client = await server.client(tls=access.options()["tls"])
        bucket = await client.jetstream().create_key_value(KeyValueConfig(bucket=BUCKET))
        await bucket.put("a", _value("a"))
        await client.close()
        for wrong in ({"ca": files["ca"]}, {"ca": files["other"], **pair}, {"ca": tmp_path / "none"}):
            async with following(database, url, **wrong) as followed:
                await until(_is_away(followed), "away")
                assert followed.items() == {}
        async with following(database, url, ca=files["ca"], **pair) as followed:
            await followed.shows({"a": 1})
    finally:
        server.kill()


async def test_a_cluster_whose_nodes_are_killed(tmp_path: Path, database: PolicyDatabase) -> None:
    """One node after another: with two of three left, a change is in force."""
    ports, routes = free_ports(3), free_ports(3)
    urls = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
    servers = [
        NatsServer(
            tmp_path / f"n{number}",
            port=port,
            config=f'server_name: n{number}\ncluster: {{name: c, listen: "127.0.0.1:{route}", routes: [{urls}]}}',
        ).start()
        for number, (port, route) in enumerate(zip(ports, routes, strict=True))
    ]
    try:

        async def write(items: int) -> None:
            for _ in range(120):
                for server in servers:
                    try:
                        async with asyncio.timeout(10), bucket_of(server, replicas=3) as bucket:
                            await bucket.put("a", _value("a", items))
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
        for server in servers:
            server.kill()


async def test_writes_compare_and_set(server: NatsServer) -> None:
    """A write at an old revision is refused; the history has all."""
    one = check_manifest(json.loads(_value("a")))
    two = check_manifest(json.loads(_value("a", 2)))
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
