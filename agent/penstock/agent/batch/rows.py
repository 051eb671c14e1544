"""The rows of a batch: its events with their kinds, its transfers and its probes.

For readers that need single entries; the metrics' aggregator reads columns.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from penstock.proto.v1.common_pb2 import TRANSFER_RESULT_ERROR

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.proto.v1.events_pb2 import EplbRebalance, Event
    from penstock.proto.v1.ingest_pb2 import Batch

KindAndEvent: TypeAlias = "tuple[str, Event]"


def typed_events(batch: Batch) -> list[KindAndEvent]:
    """Return the events of *batch*, each with the name of its body; "" for one of a newer peer.

    Asking for the name costs more than most of what is done with it, so it is asked once for all of that.
    """
    return [(event.WhichOneof("body") or "", event) for event in batch.events]


def _start(end: int, duration: int) -> int:
    """Return the start; *end* itself for a duration that would start before 1970."""
    return end - duration if duration <= end else end


class TransferSample(NamedTuple):
    """One completed transfer: the n-th entry of every column of ``TransferSamples``.

    Enums are their wire numbers; text is looked up in the batch's string table. *end_uncertainty_nano*: by how much the
    end may have been before it was seen; None from an engine that does not say.
    """

    end_time_unix_nano: int
    duration_nano: int
    bytes: int
    descriptors: int
    post_duration_nano: int
    channel: int
    direction: int
    result: int
    component: int
    rank: int
    connector: str
    peer: str
    peer_engine_id: str
    request_id: str
    end_uncertainty_nano: int | None = None

    @property
    def start_time_unix_nano(self) -> int:
        """The transfer's start; its end if the duration is impossible."""
        return _start(self.end_time_unix_nano, self.duration_nano)

    @property
    def unseen_nano(self) -> int:
        """By how much the transfer may have been shorter than its duration; 0 also where the engine does not say."""
        return min(self.end_uncertainty_nano or 0, self.duration_nano)


def transfer_rows(batch: Batch) -> Iterator[TransferSample]:
    """Yield the transfers of a batch in its order.

    The batch must have passed the limits of the ingest: columns of equal length, indices in range.
    """
    columns = batch.transfers
    if not columns.end_time_unix_nano:
        return
    text = batch.strings
    yield from map(
        TransferSample,
        columns.end_time_unix_nano,
        columns.duration_nano,
        columns.bytes,
        columns.descriptors,
        columns.post_duration_nano,
        columns.channel,
        columns.direction,
        columns.result,
        columns.component,
        columns.rank,
        [text[index] for index in columns.connector],
        [text[index] for index in columns.peer],
        [text[index] for index in columns.peer_engine_id],
        [text[index] for index in columns.request_id],
        columns.end_uncertainty_nano or repeat(None),
    )


class ProbeSample(NamedTuple):
    """One probe of a remote cache: the n-th entry of every column of ``ProbeSamples``."""

    end_time_unix_nano: int
    duration_nano: int
    result: int
    connector: str
    peer: str
    request_id: str

    @property
    def start_time_unix_nano(self) -> int:
        """The probe's start; its end if the duration is impossible."""
        return _start(self.end_time_unix_nano, self.duration_nano)


def probe_rows(batch: Batch) -> Iterator[ProbeSample]:
    """Yield the probes of a batch in its order; the batch must have passed the limits of the ingest."""
    columns = batch.probes
    if not columns.end_time_unix_nano:
        return
    text = batch.strings
    yield from map(
        ProbeSample,
        columns.end_time_unix_nano,
        columns.duration_nano,
        columns.result,
        [text[index] for index in columns.connector],
        [text[index] for index in columns.peer],
        [text[index] for index in columns.request_id],
    )


def balancedness(rebalance: EplbRebalance, when: str) -> float | None:
    """Return the mean load ÷ the maximum, *when* is ``before`` or ``after``; None if there is none.

    Without a token it is 0 / 0, and what is not in 0 to 1 is no ratio. After a rebalance that failed there is none:
    engines compute it from the new map, which has not taken effect, and older ones send it all the same.
    """
    field = f"balancedness_{when}"
    ratio: float = getattr(rebalance, field)
    failed = when == "after" and rebalance.result == TRANSFER_RESULT_ERROR
    return ratio if rebalance.HasField(field) and 0 <= ratio <= 1 and not failed else None
