"""Policies of a NATS JetStream KV bucket: a key is a policy's name, its value the manifest as JSON or YAML.

The bucket's stream is asked once a second whether it changed, and at once when a message for it passes; after a change
all keys are read. So nothing is missed after a reconnect, a purge, or the loss of a node. A value is decoded once, on a
thread; of many new ones the short ones first, and those are in force before the long ones are decoded.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.aio import raise_if_cancelled
from penstock.agent.parsing.yaml_documents import MAX_POLICY_VALUES, DocumentError, read_documents
from penstock.agent.policy.sources import MAX_ITEM_BYTES, MAX_ITEMS, SourceItem, SourceSet
from penstock.agent.policy.sources.nats.connection import NatsAccess, connected, sentence
from penstock.agent.policy.sources.nats.entries import bucket_info, read_entries

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js.client import JetStreamContext
    from penstock.agent.policy.sources import SourceSink
    from penstock.agent.policy.sources.nats.entries import BucketEntry

POLL_SECONDS = 1.0
# Between two attempts to connect.
_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 5.0
# Of a bucket that changes while it is read.
_MAX_READS = 3
# For one answer of the server.
_READ_SECONDS = 5.0
# Of new values that are decoded before those that are ready are handed over: at most 1 s of a core.
TURN_BYTES = 512 * 1024


class BucketMark(NamedTuple):
    """What changes with each change of a bucket.

    A leader that dies may have told of messages that the next one does not have, and their numbers are given again.
    """

    leader: str
    created: str
    last: int
    first: int
    messages: int


class NatsSource:
    """One bucket as a policy source."""

    kind = "nats"

    def __init__(self, name: str, access: NatsAccess, bucket: str) -> None:
        """Follow *bucket*; *name* has no secret."""
        self.name = name
        self._access = access
        self._bucket = bucket

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
        values = DecodedValues()
        while not lost.is_set():
            raise_if_cancelled()
            wake.clear()
            mark = await _mark(stream, self._bucket)
            sink.connected()
            if mark != seen or values.waiting or (again and loop.time() >= again):
                entries, seen = await _read(stream, self._bucket, mark)
                found = SourceSet(await values.decode(entries, TURN_BYTES), str(seen.last))
                wait = await sink.hand_over(found)
                again = loop.time() + wait if wait else 0.0
            await _first(wake, lost, POLL_SECONDS)


async def read_bucket(stream: JetStreamContext, bucket: str, values: DecodedValues) -> SourceSet:
    """Return the bucket as it is now, at most one policy more than the limit of a source.

    Args:
        stream: of the server.
        bucket: its name.
        values: what was decoded of it before; not decoded again.

    Raises:
        BucketNotFoundError: there is no such bucket.
        TooManyKeysError: it has too many keys.
        TimeoutError: the server does not answer.

    """
    entries, mark = await _read(stream, bucket, await _mark(stream, bucket))
    return SourceSet(await values.decode(entries), str(mark.last))


class DecodedValues:
    """The values of a bucket, each decoded once.

    Attributes:
        waiting: some are not decoded yet.

    """

    def __init__(self) -> None:
        self.waiting = False
        # A revision may be given again, to another value: the value is compared, too.
        self._known: dict[str, tuple[BucketEntry, SourceItem]] = {}

    async def decode(self, entries: list[BucketEntry], most: int | None = None) -> dict[str, SourceItem]:
        """Return the items by key. Of new values *most* bytes are decoded, or one value; the others wait."""
        known = {
            entry.key: self._known[entry.key]
            for entry in entries
            if entry.key in self._known and self._known[entry.key][0] == entry
        }
        new = sorted((each for each in entries if each.key not in known), key=lambda each: len(each.value))
        sizes = list(accumulate(len(entry.value) for entry in new))
        now = len(new) if most is None else max(bisect_right(sizes, most), min(len(new), 1))
        for entry, item in await asyncio.to_thread(_decode_all, new[:now]):
            known[entry.key] = entry, item
        self._known, self.waiting = known, now < len(new)
        waiting = {entry.key: SourceItem(revision=str(entry.revision), waits=True) for entry in new[now:]}
        return {key: item for key, (_, item) in known.items()} | waiting


def _decode_all(entries: list[BucketEntry]) -> list[tuple[BucketEntry, SourceItem]]:
    return [(entry, decode_item(entry.value, str(entry.revision))) for entry in entries]


async def _read(
    stream: JetStreamContext, bucket: str, mark: BucketMark
) -> tuple[list[BucketEntry], BucketMark]:
    """Return the bucket as it was at one moment, and its mark then.

    One that changes all the time is what its keys were one after the other; the next look finds the last change.
    """
    for _ in range(_MAX_READS):
        before = mark
        entries = await read_entries(stream, bucket, MAX_ITEMS)
        mark = await _mark(stream, bucket)
        if mark == before:
            break
    return entries[: MAX_ITEMS + 1], before


async def _mark(stream: JetStreamContext, bucket: str) -> BucketMark:
    info = await bucket_info(stream, bucket)
    state = info.state
    leader = (info.cluster.leader or "") if info.cluster is not None else ""
    return BucketMark(leader, str(info.created), state.last_seq, state.first_seq, state.messages)


def decode_item(value: bytes, revision: str) -> SourceItem:
    """Decode one value: JSON or YAML, one object."""
    if len(value) > MAX_ITEM_BYTES:
        return SourceItem(
            revision=revision, refusal=f"it has more than {MAX_ITEM_BYTES} bytes; make it shorter"
        )
    try:
        documents = read_documents(value.decode("utf-8-sig"), MAX_POLICY_VALUES)
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
