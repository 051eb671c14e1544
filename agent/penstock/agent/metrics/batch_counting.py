"""Counts the entries of one batch into the series of its engine. Pure.

What cannot be counted is a bug of ours: it goes to the troubles, and everything else of the batch is counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

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

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.agent.batch import BatchColumns, EventGroup
    from penstock.proto.v1.ingest_pb2 import Batch

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
