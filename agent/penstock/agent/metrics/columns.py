"""Columnar samples, aggregated without an object per sample."""

from __future__ import annotations

from collections import defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.metrics import catalogue as c
from penstock.agent.metrics.mapping import UNKNOWN, transfer_key
from penstock.proto.names import label
from penstock.proto.v1.common_pb2 import TRANSFER_RESULT_OK, ProbeResult

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.metrics.spec import Metric
    from penstock.proto.v1.ingest_pb2 import Batch


class Bulk(NamedTuple):
    """What many samples do to one series.

    Attributes:
        amount: added to a counter; 0 for a histogram.
        values: observed by a histogram; empty for a counter.

    """

    metric: Metric
    labels: tuple[str, ...]
    amount: int
    values: list[int]


class _Group:
    """Transfers that count in one series."""

    __slots__ = ("count", "durations", "sizes")

    def __init__(self) -> None:
        self.count = 0
        self.durations: list[int] = []
        self.sizes: list[int] = []


def transfer_bulks(batch: Batch) -> Iterator[Bulk]:
    """Yield what the transfers of *batch* do; it has passed the limits of the ingest."""
    columns, text = batch.transfers, batch.strings
    groups: defaultdict[tuple[int, ...], _Group] = defaultdict(_Group)
    keys = zip(
        columns.channel, columns.connector, columns.direction, columns.peer, columns.result, strict=True
    )
    for key, duration, size in zip(keys, columns.duration_nano, columns.bytes, strict=True):
        group = groups[key]
        group.count += 1
        # 0 is not known, and no observation.
        if duration:
            group.durations.append(duration)
        if size:
            group.sizes.append(size)
    by_duration: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    by_size: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for (channel, connector, direction, peer, result), group in groups.items():
        count_key, duration_key, size_key = transfer_key(
            channel, text[connector], direction, text[peer], result
        )
        yield Bulk(c.TRANSFERS, count_key, group.count, [])
        if result == TRANSFER_RESULT_OK:
            by_duration[duration_key] += group.durations
            by_size[size_key] += group.sizes
    for labels, values in filter(itemgetter(1), by_duration.items()):
        yield Bulk(c.TRANSFER_DURATION, labels, 0, values)
    for labels, values in filter(itemgetter(1), by_size.items()):
        yield Bulk(c.TRANSFER_SIZE, labels, 0, values)


def probe_bulks(batch: Batch) -> Iterator[Bulk]:
    """Yield what the probes of *batch* do."""
    columns, text = batch.probes, batch.strings
    counts: defaultdict[tuple[int, int, int], int] = defaultdict(int)
    for key in zip(columns.connector, columns.peer, columns.result, strict=True):
        counts[key] += 1
    for (connector, peer, result), count in counts.items():
        labels = (text[connector], text[peer] or UNKNOWN, label(ProbeResult, result))
        yield Bulk(c.CACHE_PROBES, labels, count, [])
