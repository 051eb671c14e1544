"""Policies of a NATS JetStream KV bucket: a key is a policy's name, its value the manifest as JSON or YAML.

The bucket's stream is asked once a second whether it changed, and at once when a message for it passes; after a change
all keys are read. So nothing is missed after a reconnect, a purge, or the loss of a consumer with its node.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, NamedTuple

from nats.js.errors import BucketNotFoundError, NotFoundError
from penstock.agent.parsing.yaml_documents import DocumentError, read_documents
from penstock.agent.policy.sources import MAX_ITEM_BYTES, MAX_ITEMS, SourceItem, SourceSet
from penstock.agent.policy.sources.nats.connection import NatsAccess, connected, sentence

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js.client import JetStreamContext
    from penstock.agent.policy.sources import SourceSink

POLL_SECONDS = 1.0
# Until a list is read again that does not end where the bucket ends: the replica that gave it is behind, or is wrong.
AGAIN_SECONDS = 30.0
# Between two attempts to connect.
_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 5.0
# For one key of a list.
_READ_SECONDS = 5.0
# To read a bucket that changes meanwhile.
_ATTEMPTS = 10


class BucketMark(NamedTuple):
    """What changes with each change of a bucket.

    A leader that dies may have told of messages that the next one does not have, and their numbers are given again.
    """

    leader: str
    created: str
    last: int
    first: int
    messages: int


class IncompleteError(Exception):
    """A list of the bucket lacks keys."""

    def __init__(self, read: int, expected: int) -> None:
        super().__init__(f"a list of the bucket has {read} of {expected} keys; the agent reads it again")


class NatsSource:
    """One bucket as a policy source."""

    kind = "nats"

    def __init__(self, name: str, access: NatsAccess, bucket: str) -> None:
        """Follow *bucket*; *name* has no secret."""
        self.name = name
        self._access = access
        self._bucket = bucket
        # Revision of the newest message of the last list, deletions included.
        self._newest = 0

    async def run(self, sink: SourceSink) -> None:
        """Follow the bucket until cancelled; connect for ever, with a pause of at most 5 s."""
        attempt, pause = 0, _FIRST_PAUSE
        while True:
            lost = asyncio.Event()
            begun = asyncio.get_running_loop().time()
            try:
                async with connected(self._access, attempt, lost) as client:
                    await self._follow(client, sink, lost)
                sink.away("the connection to the server ended")
            except Exception as error:  # noqa: BLE001  (whatever a server sends ends a connection, not the source)
                sink.away(sentence(error, self._bucket))
            if asyncio.get_running_loop().time() - begun > 2 * _LONGEST_PAUSE:
                pause = _FIRST_PAUSE
            attempt += 1
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  (no secret)
            pause = min(_LONGEST_PAUSE, 2 * pause)

    async def read(self, stream: JetStreamContext) -> SourceSet:
        """Return the bucket as it is now.

        Raises:
            IncompleteError: it cannot be read completely.

        """
        for _ in range(_ATTEMPTS):
            found = await self._read_all(stream, await self._mark(stream))
            if found is not None:
                return found
        raise IncompleteError(0, 0)

    async def _follow(self, client: Client, sink: SourceSink, lost: asyncio.Event) -> None:
        """Hand the bucket over after each change, until the connection is *lost*."""
        loop = asyncio.get_running_loop()
        stream = client.jetstream(timeout=_READ_SECONDS)
        wake = asyncio.Event()

        async def woken(_: object) -> None:
            wake.set()

        await client.subscribe(f"$KV.{self._bucket}.>", cb=woken)
        seen: BucketMark | None = None
        again = 0.0
        while not lost.is_set():
            wake.clear()
            mark = await self._mark(stream)
            sink.connected()
            if mark != seen or (again and loop.time() >= again):
                found = await self._read_all(stream, mark)
                if found is None:
                    continue
                wait = await sink.hand_over(found)
                if self._newest != mark.last:
                    wait = min(wait or AGAIN_SECONDS, AGAIN_SECONDS)
                seen, again = mark, loop.time() + wait if wait else 0.0
            await _first(wake, lost, POLL_SECONDS)

    async def _mark(self, stream: JetStreamContext) -> BucketMark:
        try:
            info = await stream.stream_info(f"KV_{self._bucket}")
        except NotFoundError:
            raise BucketNotFoundError from None
        state = info.state
        leader = (info.cluster.leader or "") if info.cluster is not None else ""
        return BucketMark(leader, str(info.created), state.last_seq, state.first_seq, state.messages)

    async def _read_all(self, stream: JetStreamContext, mark: BucketMark) -> SourceSet | None:
        """Read all keys of *mark*; None if new ones came meanwhile.

        Raises:
            IncompleteError: some are missing, as after a message that the server or the client dropped.

        """
        items, read = await self._read(stream)
        if len(items) <= MAX_ITEMS:
            info = await stream.stream_info(f"KV_{self._bucket}", subjects_filter=">")
            expected = len(info.state.subjects or {})
            if read < expected:
                if await self._mark(stream) == mark:
                    raise IncompleteError(read, expected)
                return None
        return SourceSet(items, str(mark.last))

    async def _read(self, stream: JetStreamContext) -> tuple[dict[str, SourceItem], int]:
        """Read all keys; return their values, and how many they are with those that are deleted."""
        bucket = await stream.key_value(self._bucket)
        watcher = await bucket.watchall()
        items: dict[str, SourceItem] = {}
        read: set[str] = set()
        self._newest = 0
        try:
            while (entry := await watcher.updates(_READ_SECONDS)) is not None:
                read.add(entry.key)
                self._newest = max(self._newest, entry.revision or 0)
                if entry.operation is not None:
                    items.pop(entry.key, None)
                    continue
                items[entry.key] = decode_item(entry.value or b"", str(entry.revision))
                if len(items) > MAX_ITEMS:
                    break
        finally:
            await watcher.stop()
        return items, len(read)


def decode_item(value: bytes, revision: str) -> SourceItem:
    """Decode one value: JSON or YAML, one object."""
    if len(value) > MAX_ITEM_BYTES:
        return SourceItem(
            revision=revision, refusal=f"it has {len(value)} bytes, the limit is {MAX_ITEM_BYTES}"
        )
    try:
        documents = read_documents(value.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return SourceItem(revision=revision, refusal="it is not UTF-8")
    except DocumentError as error:
        return SourceItem(revision=revision, refusal=f"line {error.line}: {error}")
    if len(documents) != 1:
        return SourceItem(
            revision=revision, refusal=f"it has {len(documents)} documents; a key holds one policy"
        )
    return SourceItem(documents[0].value, revision)


async def _first(wake: asyncio.Event, lost: asyncio.Event, seconds: float) -> None:
    """Wait for one of the events, at most *seconds*."""
    waits = [asyncio.ensure_future(wake.wait()), asyncio.ensure_future(lost.wait())]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
