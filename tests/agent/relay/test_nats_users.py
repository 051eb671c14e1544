"""What the guide's permissions in NATS let an agent's user and a relay's user do, at a real nats-server."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from nats.js.api import KeyValueConfig
from penstock.agent.policy.sources.nats.connection import NatsAccess
from penstock.agent.policy.sources.nats.entries import read_entries
from penstock.agent.relay.object_status.nats_lease import NatsLease
from penstock.agent.relay.policies.nats_policies import NatsPolicies

from tests.support.nats.cluster import users_of_guide
from tests.support.nats.server import NatsServer
from tests.support.policy.feed import DEADLINE, eventually
from tests.support.policy.policies import manifest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import pytest
    from nats.aio.client import Client

SECONDS = 3
BUCKETS = ("policies", "policies-leader", "penstock-agents", "other")
# Those of the API that change a stream or its messages.
STREAM_CALLS = ("CREATE", "UPDATE", "DELETE", "PURGE", "MSG.DELETE", "RESTORE", "PEER.REMOVE")
PUBLISHED = (
    *(f"$KV.{bucket}.key" for bucket in BUCKETS),
    "$KV.policies-leader.leader",
    *(f"$JS.API.STREAM.{call}.KV_{bucket}" for call in STREAM_CALLS for bucket in BUCKETS),
    *(f"$JS.API.CONSUMER.CREATE.KV_{bucket}" for bucket in BUCKETS),
    *(f"$JS.API.STREAM.MSG.GET.KV_{bucket}" for bucket in BUCKETS),
    *(f"$JS.API.DIRECT.GET.KV_{bucket}.$KV.{bucket}.key" for bucket in BUCKETS),
    *("$JS.API.STREAM.NAMES", "$JS.API.META.LEADER.STEPDOWN", "$SYS.REQ.SERVER.PING"),
)
LAST = "nobody.may"
SUBSCRIBED = (">", "_INBOX.one", "$JS.API.>", *(f"$KV.{bucket}.>" for bucket in BUCKETS))
# What each user may publish to and subscribe; all else of both lists is denied.
_FOLLOW = {"_INBOX.one", "$KV.policies.>"}
MAY = {
    "agent": {"$JS.API.STREAM.MSG.GET.KV_policies"} | _FOLLOW,
    "relay": {
        "$KV.policies.key",
        "$KV.policies-leader.leader",
        "$JS.API.STREAM.CREATE.KV_policies-leader",
        "$JS.API.STREAM.MSG.GET.KV_policies",
        "$JS.API.STREAM.MSG.GET.KV_policies-leader",
        "$JS.API.DIRECT.GET.KV_policies.$KV.policies.key",
        "$JS.API.DIRECT.GET.KV_policies-leader.$KV.policies-leader.key",
    }
    | _FOLLOW,
}


@asynccontextmanager
async def _server(place: Path) -> AsyncIterator[tuple[NatsServer, Client]]:
    """Run one with the guide's users; its operator has made the bucket of policies."""
    server = NatsServer(place / "nats", config=users_of_guide()).start()
    try:
        async with await server.client(user="ops", password="o") as operator:
            await operator.jetstream().create_key_value(KeyValueConfig(bucket="policies", history=8))
            yield server, operator
    finally:
        server.kill()


async def _values(operator: Client) -> dict[str, bytes]:
    """Return what each bucket has, by ``BUCKET KEY``."""
    stream = operator.jetstream()
    return {
        f"{bucket} {entry.key}": entry.value
        for bucket in BUCKETS
        for entry in await read_entries(stream, bucket, 10)
    }


async def _denied(server: NatsServer, user: str) -> set[str]:
    """Subscribe and publish everything as *user*; return the subjects that the server denies, in lower case."""
    denied: list[str] = []

    async def note(error: Exception) -> None:
        found = re.search(r'permissions violation for \w+ to "(.*)"', str(error).lower())
        denied.append(found[1] if found else str(error))

    async with await server.client(user=user, password=user[0], error_cb=note) as client:
        for subject in SUBSCRIBED:
            await client.subscribe(subject)
        for subject in PUBLISHED:
            # An empty message to the API asks for nothing; to a key it writes.
            await client.publish(subject, b"")
        # The server complains in order.
        await client.publish(LAST, b"")
        await eventually(lambda: LAST in denied, "the last denial")
    return {*denied}


async def test_the_users_of_the_guide(tmp_path: Path) -> None:
    """Each user and subject; what is denied changes nothing."""
    async with _server(tmp_path) as (server, operator):
        for bucket in BUCKETS:
            if bucket != "policies":
                await operator.jetstream().create_key_value(KeyValueConfig(bucket=bucket))
            opened = await operator.jetstream().key_value(bucket)
            await opened.put("leader" if bucket == "policies-leader" else "key", b"before")
        before = await _values(operator)
        may = {}
        for user in MAY:
            denied = await _denied(server, user)
            assert denied <= {each.lower() for each in (LAST, *PUBLISHED, *SUBSCRIBED)}
            may[user] = {each for each in (*PUBLISHED, *SUBSCRIBED) if each.lower() not in denied}
            if user == "agent":
                assert await _values(operator) == before
        assert may == MAY
        wanted = before | dict.fromkeys(("policies key", "policies-leader leader"), b"")
        # The server stores what it takes while it reads on.
        end = time.monotonic() + DEADLINE
        while (found := await _values(operator)) != wanted:
            assert time.monotonic() < end, found
            await asyncio.sleep(0.05)


async def test_the_permissions_of_a_relay_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes, compares and sets, deletes, reads, makes the bucket of the lease, and takes it."""
    # A busy machine is no server that is away.
    for name in ("_CONNECT_SECONDS", "_CALL_SECONDS"):
        monkeypatch.setattr(f"penstock.agent.relay.policies.nats_policies.{name}", DEADLINE)
    async with _server(tmp_path) as (server, _):
        access = NatsAccess((server.url,), user="relay", password="r")
        lease = NatsLease(access, "policies", SECONDS)
        task = asyncio.ensure_future(lease.run())
        try:
            policies = NatsPolicies("nats", access, "policies")
            first = await policies.put(manifest("a"))
            await policies.put(manifest("a", priority=7), first.revision)
            await policies.put(manifest("b"), 0)
            await policies.delete("b")
            assert set((await policies.read()).policies) == {"a"}
            await eventually(lambda: lease.held, "the lease is taken")
        finally:
            task.cancel()
