"""A follower of a real bucket."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from penstock.agent.policy.sources.follower import SourceFollower
from penstock.agent.policy.sources.nats.connection import NatsAccess
from penstock.agent.policy.sources.nats.source import NatsSource
from penstock.agent.policy.store.sqlite_store import PolicyStore

from nats.js.api import KeyValueConfig
from tests.support.policy.policies import action, document

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from penstock.agent.policy.sources.interface import SourceState
    from penstock.agent.policy.store.database import PolicyDatabase

    from tests.support.nats.server import NatsServer

BUCKET = "policies"
NAME = "nats://test/policies"


async def until(condition: Callable[[], object], what: str, deadline: float = 60.0) -> None:
    """Wait on the loop until *condition* is true."""
    end = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < end, f"not within {deadline} s: {what}"
        await asyncio.sleep(0.02)


def value(name: str, items: int = 1) -> bytes:
    """Return the value of the policy *name*; *items* is what a test changes."""
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


def is_away(followed: Followed) -> Callable[[], bool]:
    """Return whether its source is away, as a condition."""
    return lambda: followed.state.state == "away"


def reached(followed: Followed, revision: int) -> Callable[[], bool]:
    """Return whether it has that revision, as a condition."""
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
    replicas = options.pop("replicas", 1)
    async with await server.client() as client:
        yield await client.jetstream().create_key_value(
            KeyValueConfig(bucket=BUCKET, history=8, replicas=replicas)
        )
