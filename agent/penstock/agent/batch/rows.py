"""A batch's events, each with the name of its body."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from penstock.proto.v1.events_pb2 import Event
    from penstock.proto.v1.ingest_pb2 import Batch

KindAndEvent: TypeAlias = "tuple[str, Event]"


def with_kinds(batch: Batch) -> list[KindAndEvent]:
    """Return the events of *batch*, each with the name of its body; "" for one of a newer peer.

    Asking for the name costs more than most of what is done with it, so it is asked once for all of that.
    """
    return [(event.WhichOneof("body") or "", event) for event in batch.events]
