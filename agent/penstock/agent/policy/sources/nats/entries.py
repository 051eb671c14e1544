"""Reads a bucket entry by entry, each from the leader of the bucket's stream.

A list by a consumer is less: it comes from whichever replica holds the consumer, which may be behind or wrong, it lacks
what is dropped on its way, and its end never comes where an entry expires meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from nats.js.errors import BucketNotFoundError, NotFoundError
from penstock.agent.policy.sources import MAX_ITEM_BYTES

if TYPE_CHECKING:
    from nats.js.api import StreamInfo
    from nats.js.client import JetStreamContext

# Deleted ones count: their markers stay in the bucket.
MAX_KEYS = 10_000
# At a time.
_READS = 64
# The server's code of a stream that it does not have; a message that it does not have is another.
_NO_STREAM = 10059


class BucketEntry(NamedTuple):
    """One key with its value, cut one byte after 64 KiB, and the revision of its last change."""

    key: str
    value: bytes
    revision: int


class TooManyKeysError(Exception):
    """The bucket has more keys than are read."""

    def __init__(self, keys: int) -> None:
        super().__init__(
            f"the bucket has {keys} keys, deleted ones included, and the limit is {MAX_KEYS}; "
            "remove the marks of deleted keys: nats kv compact"
        )


async def bucket_info(stream: JetStreamContext, bucket: str, keys: str | None = None) -> StreamInfo:
    """Return the state of a bucket's stream, with its subjects if *keys* is ``>``.

    Raises:
        BucketNotFoundError: there is no such bucket.

    """
    try:
        return await stream.stream_info(f"KV_{bucket}", subjects_filter=keys)
    except NotFoundError:
        raise BucketNotFoundError from None


async def read_entries(stream: JetStreamContext, bucket: str, limit: int) -> list[BucketEntry]:
    """Return the entries by key; of more than *limit* a part that is larger than *limit*.

    Each is one that was there at its moment, not all at the same moment.

    Raises:
        BucketNotFoundError: there is no such bucket.
        TooManyKeysError: it has more than 10,000 keys.
        TimeoutError: the server does not answer.

    """
    prefix = f"$KV.{bucket}."
    info = await bucket_info(stream, bucket, ">")
    keys = sorted(subject.removeprefix(prefix) for subject in info.state.subjects or ())
    if len(keys) > MAX_KEYS:
        raise TooManyKeysError(len(keys))
    found: list[BucketEntry] = []
    for begin in range(0, len(keys), _READS):
        some = keys[begin : begin + _READS]
        entries = await asyncio.gather(*(read_entry(stream, bucket, key) for key in some))
        found += [entry for entry in entries if entry is not None]
        if len(found) > limit:
            break
    return found


async def read_entry(stream: JetStreamContext, bucket: str, key: str) -> BucketEntry | None:
    """Return the entry of *key*, None if it is not there or deleted.

    The client's own ``get`` may ask a replica, where the bucket allows it.

    Raises:
        BucketNotFoundError: there is no such bucket (any more), which says nothing about its keys.

    """
    try:
        message = await stream.get_msg(f"KV_{bucket}", subject=f"$KV.{bucket}.{key}")
    except NotFoundError as error:
        if error.err_code == _NO_STREAM:
            raise BucketNotFoundError from None
        return None
    headers = message.headers or {}
    if headers.get("KV-Operation") in {"DEL", "PURGE"} or "Nats-Marker-Reason" in headers:
        return None
    # What is longer is refused by its reader; a bucket of large values must not fill the memory.
    return BucketEntry(key, (message.data or b"")[: MAX_ITEM_BYTES + 1], message.seq or 0)
