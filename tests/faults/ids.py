"""The ids by which producer and oracle know an entry."""

from __future__ import annotations

import re

from penstock.proto.v1.ingest_pb2 import Batch

# A producer's word, or its child's.
_NAME = re.compile(r"p\d+(f\d+)?-\d+")


def name(word: str, number: int) -> str:
    """Return the id of a producer's n-th entry."""
    return f"{word}-{number}"


def is_producers(name: str) -> bool:
    """Tell whether an id is a producer's."""
    return _NAME.fullmatch(name) is not None


def number(name: str) -> int:
    """Return which of its producer's entries an id is."""
    return int(name.rpartition("-")[2])


def held(body: bytes) -> list[str]:
    """Return the ids of all entries of a serialized batch."""
    batch = Batch.FromString(body)
    samples = (*batch.transfers.request_id, *batch.probes.request_id)
    return [event.request_id for event in batch.events] + [batch.strings[index] for index in samples]
