"""The ids by which producer and oracle know an entry."""

from __future__ import annotations

from penstock.proto.v1.ingest_pb2 import Batch


def name(word: str, number: int) -> str:
    """Return the id of a producer's n-th entry."""
    return f"{word}-{number}"


def number(name: str) -> int:
    """Return which of its producer's entries an id is."""
    return int(name.rpartition("-")[2])


def held(body: bytes) -> list[str]:
    """Return the ids of all entries of a serialized batch."""
    batch = Batch.FromString(body)
    samples = (*batch.transfers.request_id, *batch.probes.request_id)
    return [event.request_id for event in batch.events] + [batch.strings[index] for index in samples]
