"""Restores the sources of an earlier life of the agent."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from penstock.agent.ingest import SERVER_STOPPING
from penstock.agent.model import AGENT_PROCESS
from penstock.agent.state import is_damage
from penstock.proto.names import ENGINE_CORE

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.agent.ingest import LossDetector, ServerStops
    from penstock.agent.journal import Journal, Reader
    from penstock.agent.model import EngineKey
    from penstock.agent.sources import EngineOwners, Registry

# Engines reconnect when their own back-off allows it, and this is its longest interval.
_BACK_OFF_SECONDS = 5.0
# Announcements that are read, the newest.
_MAX_STOPS = 1_000


def restore_sources(
    journal: Journal,
    registry: Registry,
    losses: LossDetector,
    owners: EngineOwners,
    *,
    known: Collection[EngineKey],
    grace: float,
) -> None:
    """Enter the sources of the journal that are open into *registry*, *losses* and *owners*; they may reconnect.

    Args:
        journal: where they are read.
        registry: shows them; closed ones of *known* engines as well, until these are retired.
        losses: waits for those that are open, *grace* seconds and the longest back-off of an engine.
        owners: keeps an engine for the process that had it, as long.
        known: engines that are not forgotten.
        grace: seconds.

    """
    with journal.reader() as reader:
        closed = {}
        rows = reader.source_rows()
        open_rows = [row for row in rows if not row.closed and row.source.process != AGENT_PROCESS]
        if open_rows:
            _restore_stops(reader, losses.stops, min(row.source.start_time_unix_nano for row in open_rows))
        for row in rows:
            if row.source.process == AGENT_PROCESS:
                continue
            if row.closed:
                closed[row.source.key, row.source.process, row.source.rank] = row
                continue
            stopped = losses.stops.covers(row.source)
            registry.restore(row.source, row.watermark, row.last_seen_unix_nano, said_goodbye=stopped)
            losses.away(row.source, row.last_seen_unix_nano, more=_BACK_OFF_SECONDS)
            if row.source.process == ENGINE_CORE:
                owners.restore(row.source.key, row.source.credential, grace + _BACK_OFF_SECONDS)
        # One that is open stands in the place of its closed predecessors.
        taken = {(live.source.key, live.source.process, live.source.rank) for live in registry.sources()}
        for place, row in closed.items():
            if row.source.key in known and place not in taken:
                goodbye = reader.ends_with_goodbye(row)
                registry.restore(row.source, row.watermark, row.last_seen_unix_nano, said_goodbye=goodbye)


def _restore_stops(reader: Reader, stops: ServerStops, since_unix_nano: int) -> None:
    """Enter what servers announced since *since* into *stops*; as far as the log can be read."""
    try:
        for logged, index in reader.scan(
            kinds=(SERVER_STOPPING,), since_unix_nano=since_unix_nano, limit=_MAX_STOPS
        ):
            source = reader.source(logged.epoch)
            if source is not None:
                time = reader.parse(logged).events[index].time_unix_nano
                stops.announce(source.key.server, time, logged.received_unix_nano)
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
