"""The policies of a bucket of NATS JetStream KV."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from nats.errors import Error as NatsError
from nats.js.errors import APIError
from penstock.agent.errors import ImpossibleError, NotFoundError, PenstockError
from penstock.agent.policy.sources.nats.connection import NatsAccess, connected, sentence
from penstock.agent.policy.sources.nats.entries import read_entry
from penstock.agent.policy.sources.nats.source import DecodedValues, read_bucket
from penstock.agent.policy.sources.nats.writer import delete_policy, put_policy
from penstock.agent.relay.policies.fleet_policies import CheckedItems, FleetPolicy, FoundPolicies, Item

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nats.aio.client import Client
    from nats.js.client import JetStreamContext
    from penstock.agent.policy.manifest import Manifest

_CONNECT_SECONDS = 1.5
_CALL_SECONDS = 5.0


class NatsPolicies:
    """The policies of *place*, a bucket; each call connects to the server that answered the last one, or else to the next.

    Attributes:
        access: to the servers.

    """

    kind = "nats"

    def __init__(self, name: str, access: NatsAccess, place: str) -> None:
        """Read and write *place*; *name* has no secret."""
        self.name = name
        self.place = place
        self.access = access
        self._server = 0
        self._values = DecodedValues()
        self._checked = CheckedItems()

    async def read(self) -> FoundPolicies:
        """Return all policies."""
        async with self._stream() as stream:
            found = await read_bucket(stream, self.place, self._values)
        return await self._checked.check(
            {name: Item(item.document, item.refusal, item.revision) for name, item in found.items.items()}
        )

    async def put(self, manifest: Manifest, if_revision: int | None = None) -> FleetPolicy:
        """Write *manifest*; see the interface."""
        async with self._stream() as stream:
            bucket = await stream.key_value(self.place)
            if if_revision is None:
                revision = await bucket.put(manifest.name, manifest.canonical.encode())
            else:
                revision = await put_policy(bucket, manifest, if_revision)
        return FleetPolicy(manifest, revision)

    async def delete(self, name: str, if_revision: int | None = None) -> None:
        """Delete the policy *name*; see the interface."""
        async with self._stream() as stream:
            bucket = await stream.key_value(self.place)
            if if_revision is None:
                if (present := await read_entry(stream, self.place, name)) is None:
                    raise NotFoundError(f"policy {name!r} is not in the bucket")
                if_revision = present.revision
            await delete_policy(bucket, name, if_revision)

    @asynccontextmanager
    async def _stream(self) -> AsyncIterator[JetStreamContext]:
        try:
            async with AsyncExitStack() as parts:
                yield (await self._connect(parts)).jetstream(timeout=_CALL_SECONDS)
        except PenstockError:
            raise
        except Exception as error:
            if not isinstance(error, APIError):
                # It says nothing: the next call goes to another. This one is not repeated, since it may be written.
                self._server += 1
            raise ImpossibleError(
                f"policy source {self.name}: {sentence(error, self.place)}; nothing is known to be written"
            ) from error

    async def _connect(self, parts: AsyncExitStack) -> Client:
        """Connect to the first server that can be reached."""
        for _ in self.access.servers[1:]:
            server = connected(self.access, self._server, asyncio.Event(), _CONNECT_SECONDS)
            try:
                return await parts.enter_async_context(server)
            except (NatsError, OSError):
                self._server += 1
        last = connected(self.access, self._server, asyncio.Event(), _CONNECT_SECONDS)
        return await parts.enter_async_context(last)
