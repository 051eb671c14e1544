"""Opens the state of an earlier life of the agent: its databases, its policies, and the sources that may come back."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.errors import UnwritableError
from penstock.agent.ingest import SERVER_STOPPING
from penstock.agent.journal import Journal, journal_errors
from penstock.agent.metrics import Aggregator, AggregatorCheckpoint
from penstock.agent.model import AGENT_PROCESS
from penstock.agent.policy.orders import OrderStore, Pauses
from penstock.agent.policy.store import AuditLimit, PolicyDatabase, PolicyStore
from penstock.agent.state import error_text, is_bad_state, is_damage
from penstock.proto.names import ENGINE_CORE

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.agent.daemon.config import Config
    from penstock.agent.ingest import LossDetector, ServerStops
    from penstock.agent.journal import Reader
    from penstock.agent.model import EngineKey
    from penstock.agent.sources import EngineOwners, Registry
    from penstock.agent.state import StateDirectory

# Attempts to start with what can be read of a damaged journal; after them it starts empty.
_SALVAGES = 2
# Of the state's limit, what the audit log may have at most: beside it lies its copy, and for a moment another one.
_AUDIT_SHARE = 16


class StoredPolicies(NamedTuple):
    """``policy.db`` and what is read from it."""

    database: PolicyDatabase
    store: PolicyStore
    pauses: Pauses
    orders: OrderStore


class CountedLog(NamedTuple):
    """The journal and the counters of all that it holds; *replayed* batches were counted by this start."""

    journal: Journal
    checkpoint: AggregatorCheckpoint
    aggregator: Aggregator
    replayed: int


class OpenedState(NamedTuple):
    """All that the state directory holds."""

    log: CountedLog
    policies: StoredPolicies


async def open_state(config: Config, place: StateDirectory) -> OpenedState:
    """Open and read both databases in one place.

    That is the state directory or, if the disk has no room for what a start must write, a substitute.

    Raises:
        PenstockError: they cannot be used; nothing is left open.

    """
    try:
        return await _read_state(config, place)
    except UnwritableError as error:
        place.leave(error)
        return await _read_state(config, place)


async def _read_state(config: Config, place: StateDirectory) -> OpenedState:
    log = await _restore(config, place)
    try:
        return OpenedState(log, _load_policies(config, place))
    except BaseException:
        await log.journal.close()
        raise


async def _restore(config: Config, place: StateDirectory) -> CountedLog:
    """Open the journal and count what it holds; replace one that turns out to be damaged meanwhile."""
    salvages = _SALVAGES
    while True:
        journal = Journal.open(place.path, config.pod_uid, place.limit, place.claim, salvages=salvages > 0)
        checkpoint = AggregatorCheckpoint(journal, aggregator := Aggregator())
        try:
            replayed = await checkpoint.restore()
        except BaseException as error:  # noqa: BLE001  (raised again, unless it is damage)
            try:
                if not (salvages and is_bad_state(error)):
                    raise
                with journal_errors(journal.path):
                    journal.mark_damaged(error_text(error))
            finally:
                await journal.close()
            salvages -= 1
        else:
            return CountedLog(journal, checkpoint, aggregator, replayed)


def _load_policies(config: Config, place: StateDirectory) -> StoredPolicies:
    """Read the policies: the database, else its copy, else none."""
    limit = AuditLimit(config.audit_entries, min(config.audit_bytes, place.limit // _AUDIT_SHARE))
    damage = ""
    for copies in (True, True, False):
        try:
            return _read_policies(
                PolicyDatabase.open(place.path, limit, place.claim, damage=damage, copies=copies)
            )
        except Exception as error:
            if not (copies and is_bad_state(error)):
                raise
            damage = error_text(error)
    raise AssertionError


def _read_policies(database: PolicyDatabase) -> StoredPolicies:
    try:
        return StoredPolicies(database, PolicyStore(database), Pauses(database), OrderStore(database))
    except BaseException:
        database.close()
        raise


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
