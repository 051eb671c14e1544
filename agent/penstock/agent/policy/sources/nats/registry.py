"""The registry of agents: a bucket with a time to live, in which each agent keeps its address.

A relay reads it to find the agents. An agent that ends without a word disappears when its entry expires.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import structlog
from nats.js.api import KeyValueConfig
from nats.js.errors import BucketNotFoundError, NoKeysError
from penstock.agent.policy.sources.nats.connection import NatsAccess, connected, sentence

if TYPE_CHECKING:
    from nats.js.client import JetStreamContext
    from nats.js.kv import KeyValue

_log = structlog.get_logger(__name__)

# Of a registry that the first agent creates, seconds.
TTL_SECONDS = 30.0
MAX_AGENTS = 10_000
_MAX_ENTRY_BYTES = 4096
_READ_SECONDS = 5.0
_PAUSE_SECONDS = 5.0


class RegisteredAgent(NamedTuple):
    """One agent of the registry: its name, and ``host:port`` of its admin service."""

    name: str
    address: str


class AgentRegistration:
    """Keeps one agent in the registry while :meth:`run` runs."""

    def __init__(self, access: NatsAccess, bucket: str, agent: RegisteredAgent) -> None:
        """Keep *agent* in *bucket*; the name is a key: letters, digits, ``-``, ``_`` and ``.``."""
        self._access = access
        self._bucket = bucket
        self._agent = agent
        self.error = ""

    async def run(self) -> None:
        """Write the entry every third of the bucket's time to live, until cancelled; then remove it."""
        attempt = 0
        while True:
            lost = asyncio.Event()
            try:
                async with connected(self._access, attempt, lost) as client:
                    bucket = await open_registry(client.jetstream(timeout=_READ_SECONDS), self._bucket)
                    await self._keep(bucket, lost)
            except Exception as error:  # noqa: BLE001  (whatever a server sends, the agent goes on)
                if not self.error:
                    _log.warning("registry away; the agent tries again", error=sentence(error, self._bucket))
                self.error = sentence(error, self._bucket)
            attempt += 1
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _keep(self, bucket: KeyValue, lost: asyncio.Event) -> None:
        pause = ((await bucket.status()).ttl or TTL_SECONDS) / 3
        value = json.dumps({"address": self._agent.address}).encode()
        try:
            while not lost.is_set():
                await bucket.put(self._agent.name, value)
                self.error = ""
                with suppress(TimeoutError):
                    await asyncio.wait_for(lost.wait(), pause)
        except asyncio.CancelledError:
            with suppress(Exception):
                await asyncio.wait_for(bucket.delete(self._agent.name), 1.0)
            raise


async def open_registry(stream: JetStreamContext, bucket: str) -> KeyValue:
    """Open the registry; create it with a time to live of 30 s if it does not exist."""
    try:
        return await stream.key_value(bucket)
    except BucketNotFoundError:
        return await stream.create_key_value(KeyValueConfig(bucket=bucket, ttl=TTL_SECONDS))


async def read_agents(bucket: KeyValue) -> list[RegisteredAgent]:
    """Return the agents of the registry by name, at most 10,000; entries that cannot be read are left out."""
    try:
        names = await bucket.keys()
    except NoKeysError:
        return []
    found = []
    for name in sorted(names)[:MAX_AGENTS]:
        with suppress(Exception):
            value = (await bucket.get(name)).value or b""
            address = json.loads(value)["address"] if len(value) <= _MAX_ENTRY_BYTES else None
            if isinstance(address, str):
                found.append(RegisteredAgent(name, address))
    return found
