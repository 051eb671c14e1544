"""The registry of agents: a bucket with a time to live, in which each agent keeps its address.

A relay reads it to find the agents. An agent that ends without a word disappears when its entry expires.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import structlog
from nats.js.api import KeyValueConfig
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from penstock.agent.aio import raise_if_cancelled
from penstock.agent.policy.sources.nats.connection import NatsAccess, connected, open_or_create, sentence
from penstock.agent.policy.sources.nats.entries import read_entries

if TYPE_CHECKING:
    from nats.js.client import JetStreamContext
    from nats.js.kv import KeyValue

_log = structlog.get_logger(__name__)

# Of a registry that the first agent creates, seconds.
TTL_SECONDS = 30.0
MAX_AGENTS = 2_000
_MAX_ENTRY_BYTES = 4096
_READ_SECONDS = 5.0
_PAUSE_SECONDS = 5.0
_GOODBYE_SECONDS = 1.0


class RegisteredAgent(NamedTuple):
    """One agent of the registry: its name, and ``host:port`` of its admin service."""

    name: str
    address: str


class _Entry(NamedTuple):
    address: str
    instance: str
    revision: int


class AgentRegistration:
    """Keeps one agent in the registry while :meth:`run` runs.

    Attributes:
        error: why it is not there now; empty while it is. Any thread.

    """

    def __init__(self, access: NatsAccess, bucket: str, agent: RegisteredAgent) -> None:
        """Keep *agent* in *bucket*; the name is a key: letters, digits, ``-``, ``_`` and ``.``."""
        self._access = access
        self._bucket = bucket
        self._agent = agent
        # Tells this process from another of the same name.
        self._instance = uuid.uuid4().hex
        self.error = "it has not been reached yet"

    async def run(self) -> None:
        """Write the entry every third of the bucket's time to live, until cancelled; then remove it."""
        attempt = 0
        while True:
            lost = asyncio.Event()
            try:
                async with connected(self._access, attempt, lost) as client:
                    bucket = await open_registry(client.jetstream(timeout=_READ_SECONDS), self._bucket)
                    await self._keep(bucket, lost)
                self._set("the connection to the server is lost")
            except Exception as error:  # noqa: BLE001  (whatever a server sends, the agent goes on)
                self._set(sentence(error, self._bucket))
            attempt += 1
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _keep(self, bucket: KeyValue, lost: asyncio.Event) -> None:
        pause = ((await bucket.status()).ttl or TTL_SECONDS) / 3
        try:
            while not lost.is_set():
                self._set(await self._write(bucket))
                raise_if_cancelled()
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await lost.wait()
        except asyncio.CancelledError:
            with suppress(Exception):
                async with asyncio.timeout(_GOODBYE_SECONDS):
                    await self._remove(bucket)
            raise

    async def _write(self, bucket: KeyValue) -> str:
        """Write the entry; return why it is not written, if another agent has the name."""
        name, address = self._agent
        value = json.dumps({"address": address, "instance": self._instance}).encode()
        present = await _read_entry(bucket, name)
        if present is not None and present.instance != self._instance and present.address != address:
            return f"another agent, at {present.address}, goes by the name {name}; give one of them another --agent-name"
        try:
            if present is None:
                await bucket.create(name, value)
            else:
                await bucket.update(name, value, last=present.revision)
        except KeyWrongLastSequenceError:
            return f"another agent has just taken the name {name}"
        return ""

    async def _remove(self, bucket: KeyValue) -> None:
        present = await _read_entry(bucket, self._agent.name)
        if present is not None and present.instance == self._instance:
            # Not a successor's.
            await bucket.delete(self._agent.name, last=present.revision)

    def _set(self, error: str) -> None:
        if error and error != self.error:
            _log.warning("the agent is not in the registry; it tries again", reason=error)
        elif self.error and not error:
            _log.info("the agent is in the registry", name=self._agent.name, address=self._agent.address)
        self.error = error


async def _read_entry(bucket: KeyValue, name: str) -> _Entry | None:
    """Return the entry of *name*; one that cannot be read has no owner."""
    try:
        found = await bucket.get(name)
    except KeyNotFoundError:
        return None
    address, instance = _decoded(found.value or b"")
    return _Entry(address, instance, found.revision or 0)


def _decoded(value: bytes) -> tuple[str, str]:
    """Return address and instance of an entry; empty where it has none."""
    if len(value) > _MAX_ENTRY_BYTES:
        return "", ""
    try:
        found = json.loads(value)
        address, instance = found["address"], found.get("instance", "")
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return "", ""
    return (address, str(instance)) if isinstance(address, str) else ("", "")


async def open_registry(stream: JetStreamContext, bucket: str) -> KeyValue:
    """Open the registry; create it with a time to live of 30 s if it does not exist."""
    return await open_or_create(stream, KeyValueConfig(bucket=bucket, ttl=TTL_SECONDS))


async def read_agents(stream: JetStreamContext, bucket: str) -> list[RegisteredAgent]:
    """Return the agents of the registry by name, at most 2,000; entries that cannot be read are left out.

    Raises:
        TimeoutError: the server does not answer.

    """
    entries = await read_entries(stream, bucket, MAX_AGENTS)
    addresses = ((entry.key, _decoded(entry.value)[0]) for entry in entries[:MAX_AGENTS])
    return [RegisteredAgent(name, address) for name, address in addresses if address]


async def find_agents(access: NatsAccess, bucket: str, attempt: int) -> list[RegisteredAgent]:
    """Connect to the server whose turn it is at *attempt*, and return the agents of the registry.

    Raises:
        OSError: no server can be reached, or the registry cannot be read; the text says why.

    """
    try:
        async with connected(access, attempt, asyncio.Event()) as client:
            return await read_agents(client.jetstream(timeout=_READ_SECONDS), bucket)
    except Exception as error:
        raise OSError(sentence(error, bucket)) from error
