"""Both databases of the state directory, open and read; a damaged one is replaced by what can be recovered."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.errors import UnwritableError
from penstock.agent.journal import Journal, journal_errors
from penstock.agent.metrics import Aggregator, AggregatorCheckpoint
from penstock.agent.policy.orders import OrderStore, Pauses
from penstock.agent.policy.store import AuditLimit, PolicyDatabase, PolicyStore
from penstock.agent.state import error_text, is_bad_state

if TYPE_CHECKING:
    from penstock.agent.daemon.config import Config
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
