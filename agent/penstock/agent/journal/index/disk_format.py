"""The request index on disk: the keys of a batch, and later those of many batches in one run. Pure.

A *run* holds the keys of many batches that follow each other, in 256 buckets by a key's first eight bits. In a bucket come the
keys first, then their batches, counted from the run's first one, so that a look-up is one search through a few hundred keys.
Its filter excludes most keys that are not in the run.
See ``docs/decisions/0020-the-request-index.md``.
"""

from __future__ import annotations

import sys
from array import array
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from penstock.agent.journal.database import MAX_INTEGER
from penstock.proto.v1.events_pb2 import Event

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.agent.batch import BatchColumns

_BODIES = Event.DESCRIPTOR.oneofs_by_name["body"].fields
KIND_NUMBERS = {field.name: field.number for field in _BODIES}
_NAMES_REMOTE = frozenset(
    field.name
    for field in _BODIES
    if field.message_type is not None and "remote_request_id" in field.message_type.fields_by_name
)
_NAMES_OTHERS = _NAMES_REMOTE | {"request_closed", "handshake"}


class KindRow(NamedTuple):
    """The events of one kind in a batch; ``kind`` is the field number in ``Event.body``, 0 for those of a newer peer."""

    kind: int
    newest_unix_nano: int


def kind_rows(contents: BatchColumns) -> list[KindRow]:
    """Return a row for each kind that is among the events."""
    return [
        KindRow(KIND_NUMBERS.get(kind, 0), min(group.newest, MAX_INTEGER))
        for kind, group in contents.groups.items()
    ]


def _other_ids(kind: str, event: Event) -> Iterable[str]:
    """Return the ids that *event* names beside its own: the remote one, the client's name for it, the waiters."""
    if kind == "handshake":
        return event.handshake.waiting_request_ids
    if kind == "request_closed":
        return event.request_closed.remote_request_id, event.request_closed.external_request_id
    return (getattr(event, kind).remote_request_id,)


def event_request_ids(event: Event) -> set[str]:
    """Return all ids of requests that *event* is about."""
    kind = event.WhichOneof("body")
    ids = {event.request_id}
    if kind in _NAMES_OTHERS:
        ids.update(_other_ids(kind, event))
    ids.discard("")
    return ids


def request_ids(contents: BatchColumns) -> set[str]:
    """Return all ids of requests that a batch names: in its events and its samples."""
    ids: set[str] = set()
    for kind, group in contents.groups.items():
        ids.update(group.request_ids)
        # As `_other_ids`, for all events of the kind at once.
        if kind in _NAMES_REMOTE:
            ids.update(group.values("remote_request_id"))
        if kind == "request_closed":
            ids.update(group.values("external_request_id"))
        elif kind == "handshake":
            ids.update(chain.from_iterable(body.waiting_request_ids for body in group.bodies))
    strings = contents.strings
    for columns in (contents.transfers, contents.probes):
        if len(columns):
            ids.update(map(strings.__getitem__, set(columns["request_id"])))
    ids.discard("")
    return ids


def request_key(request_id: str) -> int:
    """Return the index key of a request: 32 bits of its id. Keys collide."""
    return crc32(request_id.encode())


def request_keys(contents: BatchColumns) -> set[int]:
    """Return the keys of all requests that a batch names: :func:`request_key` of each."""
    return set(map(crc32, map(str.encode, request_ids(contents))))


RUN_KEYS: Final = 144 << 10
"""Keys of a run: 576 in a bucket, which fill a page of the database and do not overflow it."""

RUN_BATCHES: Final = 1 << 16
"""Distinct batch numbers of a run."""

BUCKETS: Final = 256

_KEY_BITS = 32
_KEY_BYTES, _OFFSET_BYTES = 4, 2
_BUCKET_SHIFT = _KEY_BITS - 8
# Bits of a filter for each key, at least: one is set at the first bits of the key. One of sixteen keys that are not there passes.
_FILTER_BITS = 12
_LEAST_BITS = 3
_SET = ord("1")


class IndexRun(NamedTuple):
    """The keys of the batches *first* to *last*; each bucket with its number."""

    first: int
    last: int
    passing: bytes
    buckets: list[tuple[int, bytes]]


def _little(values: array[int]) -> bytes:
    """Return the bytes that lie on disk: the same on every machine."""
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def pack_keys(keys: Iterable[int]) -> bytes:
    """Return the keys of one batch as they are stored."""
    return _little(array("I", keys))


def unpack_keys(stored: bytes) -> array[int]:
    """Undo :func:`pack_keys`; a truncated last key is left out."""
    keys = array("I", stored[: len(stored) - len(stored) % _KEY_BYTES])
    if sys.byteorder == "big":
        keys.byteswap()
    return keys


def places(stored: bytes | bytearray, key: int, end: int | None = None) -> Iterator[int]:
    """Yield the indexes at which *key* stands among the packed keys of *stored*, up to the byte *end*."""
    wanted = key.to_bytes(_KEY_BYTES, "little")
    at = stored.find(wanted, 0, end)
    while at >= 0:
        index, rest = divmod(at, _KEY_BYTES)
        if not rest:
            yield index
        at = stored.find(wanted, at + 1, end)


def make_run(rows: Sequence[tuple[int, bytes]]) -> IndexRun:
    """Return the run of *rows*: batches, ascending, the last at most 65,535 above the first, with their packed keys."""
    first, last = rows[0][0], rows[-1][0]
    packed = b"".join(stored for _, stored in rows)
    offsets = chain.from_iterable(repeat(batch - first, len(stored) // _KEY_BYTES) for batch, stored in rows)
    keys: list[list[int]] = [[] for _ in range(BUCKETS)]
    batches: list[list[int]] = [[] for _ in range(BUCKETS)]
    bits = min(_KEY_BITS, max(_LEAST_BITS, (len(packed) // _KEY_BYTES * _FILTER_BITS - 1).bit_length()))
    shift = _KEY_BITS - bits
    digits = bytearray(b"0") * (1 << bits)
    # All that is done for each key, once for some hundred thousand: the bucket is the key's highest byte.
    for bucket, key, offset in zip(
        packed[_KEY_BYTES - 1 :: _KEY_BYTES], unpack_keys(packed), offsets, strict=True
    ):
        keys[bucket].append(key)
        batches[bucket].append(offset)
        digits[key >> shift] = _SET
    # From digits to bits in C: a few milliseconds for two million.
    passing = int(digits, 2).to_bytes(len(digits) // 8, "big")
    buckets = [
        (number, _little(array("I", held)) + _little(array("H", batches[number])))
        for number, held in enumerate(keys)
        if held
    ]
    return IndexRun(first, last, passing, buckets)


def bucket_of(key: int) -> int:
    """Return the number of the bucket that *key* belongs to."""
    return key >> _BUCKET_SHIFT


def passes(passing: bytes, key: int) -> bool:
    """Return whether *key* may be in the run of a filter; False is certain."""
    bit = key >> (_KEY_BITS - (len(passing) * 8 - 1).bit_length())
    return passing[bit >> 3] & (0x80 >> (bit & 7)) != 0


def batches_in(first: int, bucket: bytes, key: int) -> Iterator[int]:
    """Yield the batches that name *key* by a *bucket* of the run that begins at *first*."""
    end = len(bucket) // (_KEY_BYTES + _OFFSET_BYTES) * _KEY_BYTES
    for index in places(bucket, key, end):
        at = end + index * _OFFSET_BYTES
        yield first + int.from_bytes(bucket[at : at + _OFFSET_BYTES], "little")
