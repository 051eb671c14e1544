"""Counts the entries of one batch into the series of its engine. Pure.

What cannot be counted is a bug of ours: it goes to the troubles, and everything else of the batch is counted.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.batch import FEW
from penstock.agent.metrics.catalogue import from_log
from penstock.agent.metrics.series import (
    COUNTED,
    UNKNOWN,
    EngineSeries,
    closed_bulks,
    ended_bulks,
    event_updates,
    probe_bulks,
    transfer_bulks,
)
from penstock.agent.model import AGENT_PROCESS
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from penstock.agent.batch import BatchColumns, EventGroup
    from penstock.agent.model import EngineKey, Source
    from penstock.proto.v1.events_pb2 import Event, TransferFailure
    from penstock.proto.v1.ingest_pb2 import Batch

_FAILURE = "transfer_failure"
# Above it, the oldest is forgotten: the ranks of one request report it within seconds.
MAX_ANSWERS = 4_096
LATE_READ: Final = "late_read"
LATE_WRITE: Final = "late_write"
MISMATCH: Final = "mismatch"
# Above it, the one that was ended first is forgotten: its engine has been away for longest.
MAX_ENDED = 10_000


class SuspectAnswers:
    """The requests that were counted for each reason, so that none counts twice."""

    def __init__(self, rows: Iterable[Sequence[str]] = ()) -> None:
        """Take over what :meth:`dump` returned."""
        self._counted: dict[tuple[str, ...], None] = {tuple(row): None for row in rows}

    def dump(self) -> list[list[str]]:
        """Return the state for JSON."""
        return [list(row) for row in self._counted]

    def new(self, key: EngineKey, contents: BatchColumns) -> dict[str, int]:
        """Return how many requests of engine *key* are suspect for the first time in *contents*, by reason; drills are none."""
        found: Counter[str] = Counter()
        if _FAILURE not in contents.groups:
            return found
        for _, event in contents.in_order((_FAILURE,)):
            reason = "" if event.rehearsal else _reason(event.transfer_failure)
            if not reason:
                continue
            row = _row(key, event.request_id, reason)
            # Two events without a request may be of one answer or of two; both count.
            if row not in self._counted or not event.request_id:
                found[reason] += 1
            self._counted[row] = None
        while len(self._counted) > MAX_ANSWERS:
            del self._counted[next(iter(self._counted))]
        return found


def _reason(failure: TransferFailure) -> str:
    """Return why an answer may be wrong after *failure*; empty if none is."""
    if failure.mode == common.FAILURE_MODE_LATE_READ:
        # Of the receiving side it is a write into blocks that were free by then.
        return {common.DIRECTION_SEND: LATE_READ, common.DIRECTION_RECEIVE: LATE_WRITE}.get(
            failure.direction, ""
        )
    return MISMATCH if failure.error_type == common.ERROR_TYPE_CORRUPT and failure.used else ""


def _row(key: EngineKey, request_id: str, reason: str) -> tuple[str, ...]:
    """Return what is stored of a counted answer; late reads stand without their reason, as they were stored first."""
    row = (key.server, key.engine, request_id)
    return row if reason == LATE_READ else (*row, reason)


class EndedByLoss:
    """What has been counted as ``engine_lost``, so that its second end is not counted: a counter takes nothing back.

    An end is known by its source's epoch, its request, its reason and its start.
    """

    def __init__(self, rows: Iterable[Sequence[int | str]] = ()) -> None:
        """Take over what :meth:`dump` returned."""
        self._ends: dict[tuple[int | str, ...], None] = {tuple(row): None for row in rows}

    def dump(self) -> list[list[int | str]]:
        """Return the state for JSON."""
        return [list(end) for end in self._ends]

    def seconds(self, source: Source, contents: BatchColumns) -> Collection[int]:
        """Return the places of *source*'s events that end what has ended, and forget that; remember what the agent ends."""
        if source.process == AGENT_PROCESS:
            self._remember(contents)
            return ()
        if not self._ends or _ENDED not in contents.groups:
            return ()
        group = contents.groups[_ENDED]
        found = set()
        for place, event in zip(group.places, group.events, strict=True):
            end = _end(source.epoch, event)
            if end in self._ends:
                del self._ends[end]
                found.add(place)
        return found

    def _remember(self, contents: BatchColumns) -> None:
        lost = [event.source_lost.epoch for _, event in contents.in_order(("source_lost",))]
        # The agent writes the loss of one source in one batch.
        if len(lost) != 1:
            return
        for _, event in contents.in_order((_ENDED,)):
            self._ends[_end(lost[0], event)] = None
        while len(self._ends) > MAX_ENDED:
            del self._ends[next(iter(self._ends))]


def _end(epoch: int, event: Event) -> tuple[int | str, ...]:
    body = event.deferral_end
    return epoch, event.request_id, body.reason, body.start_time_unix_nano


# The kinds of events of which there are most: one a request that has waited, and one a request.
_ENDED = "deferral_end"
_CLOSED = "request_closed"


class Trouble(NamedTuple):
    """Entries of one kind that were not counted, and the error."""

    kind: str
    error: Exception


def count_events(
    engine: EngineSeries,
    contents: BatchColumns,
    seconds: Collection[int],
    troubles: list[Trouble],
) -> None:
    """Count the events; *seconds* are the places of second ends of deferrals, which are entries and no ends."""
    groups = contents.groups
    for group in groups.values():
        engine.time = max(engine.time, group.newest)
    counted = groups.keys() & COUNTED
    if _ENDED in counted and not seconds and _add_ended(engine, groups[_ENDED]):
        counted.discard(_ENDED)
    if _CLOSED in counted and _add_closed(engine, groups[_CLOSED]):
        counted.discard(_CLOSED)
    for place, kind, event in contents.placed(counted):
        if place in seconds:
            continue
        time = event.time_unix_nano
        try:
            # All of an event's series, or none.
            for metric, labels, value in tuple(event_updates(kind, event)):
                engine.add(metric, labels, value, time)
        except Exception as error:  # noqa: BLE001  (only this event is not counted)
            troubles.append(Trouble(kind, error))
    for kind, group in groups.items():
        engine.add(from_log.EVENTS, (kind or UNKNOWN,), len(group), engine.time)


def _add_ended(engine: EngineSeries, group: EventGroup) -> bool:
    """Count ended waits all at once; False if they have to be counted one by one, in their order."""
    if len(group) < FEW:
        return False
    try:
        return engine.add_known(tuple(ended_bulks(group)))
    except Exception:  # noqa: BLE001  (one by one, only the broken one is not counted)
        return False


def _add_closed(engine: EngineSeries, group: EventGroup) -> bool:
    """Count ended requests all at once; False if they have to be counted one by one."""
    if len(group) < FEW:
        return False
    try:
        # Most requests have no verification.
        if group.may_have("verifications.channel") or (bulks := closed_bulks(group)) is None:
            return False
        return engine.add_known(tuple(bulks))
    except Exception:  # noqa: BLE001  (one by one, only the broken one is not counted)
        return False


def count_samples(engine: EngineSeries, contents: BatchColumns, troubles: list[Trouble]) -> None:
    """Count the transfers and probes; all samples of a kind, or none."""
    for kind, columns, bulks in (
        ("transfer_sample", contents.transfers, transfer_bulks),
        ("probe_sample", contents.probes, probe_bulks),
    ):
        if len(columns):
            time = max(columns["end_time_unix_nano"])
            engine.time = max(engine.time, time)
            engine.add(from_log.EVENTS, (kind,), len(columns), time)
            try:
                engine.add_bulks(tuple(bulks(contents)))
            except Exception as error:  # noqa: BLE001  (only these samples are not counted)
                troubles.append(Trouble(kind, error))


def count_losses(engine: EngineSeries, batch: Batch) -> None:
    """Count what the engine says it has dropped, what a tombstone says was lost, and errors of hooks."""
    for drops, fallback in ((batch.drops, UNKNOWN), (batch.tombstone.lost, "tombstone")):
        for drop in drops:
            engine.add(from_log.EVENTS_DROPPED, (drop.reason or fallback,), drop.count, engine.time)
    for error in batch.guard_errors:
        engine.add(from_log.GUARD_ERRORS, (error.hook, error.error_class), error.count, engine.time)
