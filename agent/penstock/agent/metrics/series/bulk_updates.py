"""Columns of samples and of ended waits, aggregated without an object for each.

What is here does to the series what the updates of :mod:`updates`, one by one, would do.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import islice
from operator import gt, itemgetter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from penstock.agent.batch import GATES
from penstock.agent.metrics.catalogue import from_log
from penstock.agent.metrics.series.updates import ENDINGS, REASONS, UNKNOWN, transfer_key
from penstock.proto.names import label
from penstock.proto.v1.common_pb2 import TRANSFER_RESULT_OK, ProbeResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.agent.batch import BatchColumns, EventGroup, SampleColumns
    from penstock.agent.metrics.catalogue import Metric

_Key = TypeVar("_Key")


class BulkUpdate(NamedTuple):
    """What many entries do to one series.

    Attributes:
        amount: added to a counter; 0 for a histogram.
        values: observed by a histogram; empty for a counter.
        time: that of the newest of them.

    """

    metric: Metric
    labels: tuple[str, ...]
    amount: int
    values: list[int]
    time: int


class _Transfers(NamedTuple):
    """Transfers that count in one series; 0 is not known, and no observation. *unseen*: by how much they may have been shorter."""

    rows: int
    durations: list[int]
    sizes: list[int]
    unseen: int


_KEY = ("channel", "connector", "direction", "peer", "result")


def _durations(columns: SampleColumns) -> list[int]:
    """Return the durations; 0, not known, for those that lead below 1970."""
    durations, ends = columns["duration_nano"], columns["end_time_unix_nano"]
    if max(durations) <= min(ends):
        return durations
    return [duration if duration <= end else 0 for duration, end in zip(durations, ends, strict=True)]


def _unseen(columns: SampleColumns, durations: list[int]) -> list[int]:
    """Return by how much each duration may have been shorter; 0 for those that are not known."""
    unseen = columns["end_uncertainty_nano"]
    return list(map(min, unseen, durations)) if any(unseen) else [0] * len(durations)


def _by_key(contents: BatchColumns) -> dict[tuple[int, ...], _Transfers]:
    """Return the transfers of each combination of channel, connector, direction, peer and result."""
    columns = contents.transfers
    durations, sizes = _durations(columns), columns["bytes"]
    unseen = _unseen(columns, durations)
    count = len(durations)
    keys = [columns[name] for name in _KEY]
    if all(column.count(column[0]) == count for column in keys):
        # One connector moves to or from one peer: most batches of a worker.
        return {
            tuple(column[0] for column in keys): _Transfers(
                count, list(filter(None, durations)), list(filter(None, sizes)), sum(unseen)
            )
        }
    groups: dict[tuple[int, ...], list[tuple[int, int, int]]] = {}
    for key, known in zip(zip(*keys, strict=True), zip(durations, sizes, unseen, strict=True), strict=True):
        if key in groups:
            groups[key].append(known)
        else:
            groups[key] = [known]
    return {
        key: _Transfers(
            len(rows),
            [duration for duration, _, _ in rows if duration],
            [size for _, size, _ in rows if size],
            sum(late for _, _, late in rows),
        )
        for key, rows in groups.items()
    }


def transfer_bulks(contents: BatchColumns) -> Iterator[BulkUpdate]:
    """Yield what the transfers do, of which there are some; they have passed the limits of the ingest."""
    text = contents.strings
    time = max(contents.transfers["end_time_unix_nano"])
    by_duration: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    by_size: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    unseen: Counter[tuple[str, ...]] = Counter()
    for (channel, connector, direction, peer, result), group in _by_key(contents).items():
        count_key, duration_key, size_key = transfer_key(
            channel, text[connector], direction, text[peer], result
        )
        yield BulkUpdate(from_log.TRANSFERS, count_key, group.rows, [], time)
        if result == TRANSFER_RESULT_OK:
            by_duration[duration_key] += group.durations
            by_size[size_key] += group.sizes
            unseen[duration_key] += group.unseen
    for metric, by_labels in ((from_log.TRANSFER_DURATION, by_duration), (from_log.TRANSFER_SIZE, by_size)):
        for labels, values in by_labels.items():
            if values:
                yield BulkUpdate(metric, labels, 0, values, time)
    for labels, nanos in unseen.items():
        if nanos:
            yield BulkUpdate(from_log.TRANSFER_END_UNCERTAINTY, labels, nanos, [], time)


def probe_bulks(contents: BatchColumns) -> Iterator[BulkUpdate]:
    """Yield what the probes do, of which there are some; they have passed the limits of the ingest."""
    columns, text = contents.probes, contents.strings
    time = max(columns["end_time_unix_nano"])
    counts = Counter(zip(columns["connector"], columns["peer"], columns["result"], strict=True))
    for (connector, peer, result), count in counts.items():
        labels = (text[connector], text[peer] or UNKNOWN, label(ProbeResult, result))
        yield BulkUpdate(from_log.CACHE_PROBES, labels, count, [], time)


def ended_bulks(group: EventGroup) -> Iterator[BulkUpdate]:
    """Yield what the events ``deferral_end`` of a batch do: every request that waits has one."""
    reasons, times = group.column("reason"), group.times
    keys = list(zip(reasons, group.column("ending"), group.column("peer.address"), strict=True))
    newest = _newest(keys, times)
    for key, count in Counter(keys).items():
        reason, ending, peer = key
        labels = (REASONS.get(reason, UNKNOWN), ENDINGS.get(ending, UNKNOWN), peer or UNKNOWN)
        yield BulkUpdate(from_log.DEFERRALS, labels, count, [], newest[key])
    for reason, rows in _by_reason(reasons, group.column("start_time_unix_nano"), times).items():
        # A clock that was set back makes no time negative.
        waits = [end - start if end > start else 0 for start, end in rows]
        newest_end = max(map(itemgetter(1), rows))
        yield BulkUpdate(from_log.DEFERRED_TIME, (REASONS.get(reason, UNKNOWN),), 0, waits, newest_end)


def closed_bulks(group: EventGroup) -> Iterable[BulkUpdate] | None:
    """Return what the events ``request_closed`` of a batch do; None if they have to be looked at one by one."""
    count = len(group)
    found = {gate: group.present(f"gates.{gate}_nano") for gate in GATES}
    tokens = group.present("first_token_time_unix_nano")
    values = {gate: nano for gate, nano in found.items() if nano is not None}
    if tokens is None or len(values) < len(GATES):
        return None
    if not any(values.values()):
        return ()
    # Only if each has gates and a first token.
    if len(values["own_prefill"]) != count or len(tokens) != count:
        return None
    if sum(max(nano, default=0) for nano in values.values()) > min(group.times):
        return None
    return [
        BulkUpdate(
            from_log.TIME_TO_FIRST_TOKEN, (gate,), 0, [*nano, *([0] * (count - len(nano)))], group.newest
        )
        for gate, nano in values.items()
    ]


def _newest(keys: Sequence[_Key], times: Sequence[int]) -> dict[_Key, int]:
    """Return the newest time of each key."""
    pairs: Iterable[tuple[_Key, int]] = zip(keys, times, strict=True)
    if any(map(gt, times, islice(times, 1, None))):
        pairs = sorted(pairs, key=itemgetter(1))
    # Of equal keys the last one stays.
    return dict(pairs)


def _by_reason(
    reasons: Sequence[int], starts: Sequence[int], ends: Sequence[int]
) -> dict[int, list[tuple[int, int]]]:
    """Return start and end of the waits by their reason, without those whose start is not known."""
    rows = zip(starts, ends, strict=True)
    if all(starts) and reasons.count(reasons[0]) == len(reasons):
        return {reasons[0]: list(rows)}
    found: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for reason, row in zip(reasons, rows, strict=True):
        if row[0]:
            found[reason].append(row)
    return found
