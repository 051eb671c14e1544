"""A damaged journal: set aside, and replaced by what can be read of it."""

from __future__ import annotations

import os
import sqlite3
import time
import zlib
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Final

import structlog
from google.protobuf.message import DecodeError
from penstock.agent.batch import BatchColumns
from penstock.agent.journal.database import (
    BATCH_COLUMNS,
    FILE,
    RESERVE_FILE,
    connect,
    connect_reader,
    create_schema,
    decode_source,
    logged_of,
    parse_batch,
    unsigned,
)
from penstock.agent.journal.index import kind_rows, pack_keys, request_keys
from penstock.agent.state import DamagedError, is_bad_state, is_unwritable, set_aside, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

# Seconds that a salvage may take at a start: engines keep what they have to report for longer.
_SECONDS: Final = 10.0
_MAX_INTEGER: Final = (1 << 63) - 1
# Rows of one statement.
_AT_ONCE: Final = 1_000
# What SQLite and Python raise over damaged bytes.
_DAMAGE: Final = (sqlite3.Error, ValueError, TypeError, OverflowError, DecodeError, DamagedError)
# Numbers are given out one by one: one that is so far above all that were found is none.
_MOST_MISSING: Final = 10_000_000


class Salvage:
    """Reads the database *damaged* into the new one at *target*, which is complete when :meth:`run` returns.

    Args:
        size: bytes of batches that are kept, the newest first; what the counters have not counted yet is kept in any case.
        clock: monotonic seconds; ten of them are spent on batches.

    """

    def __init__(
        self, damaged: Path, target: Path, size: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._damaged = damaged
        self._target = target
        self._left = size
        self._clock = clock
        self._epochs: dict[int, tuple[int, int]] = {}
        self._counted = 0
        self._kept = 0
        # Numbers that sources were acknowledged beyond the last batch of theirs that was kept.
        self._short = 0

    def run(self) -> str:
        """Read and write; return a text about what was kept and lost, empty if nothing was kept."""
        with closing(connect_reader(self._damaged)) as old, closing(connect(self._target)) as new:
            # A file that is shorter than it says, or has an unknown table, is read as far as it goes; rows that are
            # cut are found, and not read as others.
            old.execute("PRAGMA writable_schema = ON")
            old.execute("PRAGMA cell_size_check = ON")
            create_schema(new)
            new.execute("BEGIN")
            self._copy_meta(old, new)
            sources = self._sources(old)
            self._epochs = dict.fromkeys((row[0] for row in sources), (0, 0))
            oldest, last = self._copy_batches(old, new)
            self._put_sources(new, sources)
            said = self._account(old, new, oldest, last)
            new.execute("COMMIT")
            # One file, so that one rename puts it in force.
            new.execute("PRAGMA journal_mode = DELETE")
        with self._target.open("rb") as file:
            os.fsync(file)
        return said if self._kept or self._counted else ""

    def _copy_meta(self, old: sqlite3.Connection, new: sqlite3.Connection) -> None:
        for key in ("created_unix_nano", "agent_epoch", "lost_batches"):
            for (value,) in _some(old, "SELECT value FROM meta WHERE key = ?", (key,)):
                if isinstance(value, int) and value > 0:
                    new.execute("INSERT INTO meta VALUES (?, ?)", (key, value))
        for (value,) in _some(old, "SELECT value FROM meta WHERE key = 'pod_uid'"):
            if isinstance(value, str):
                new.execute("INSERT INTO meta VALUES ('pod_uid', ?)", (value,))
        for batch, body in _some(old, "SELECT batch, body FROM folds WHERE name = 'metrics'"):
            with suppress(zlib.error, TypeError):
                zlib.decompress(body)
                self._counted = batch if _is_count(batch) else 0
                if self._counted:
                    new.execute("INSERT INTO folds VALUES ('metrics', ?, ?)", (batch, body))

    def _sources(self, old: sqlite3.Connection) -> list[tuple[Any, ...]]:
        """Return the sources whose Hello can be read: epoch, hello, watermark, when opened, last seen and closed."""
        columns = "epoch, hello, watermark, opened_unix_nano, last_seen_unix_nano, closed_unix_nano"
        found = []
        for row in newest_first(old, columns, "sources", "epoch"):
            epoch, hello, *counts, closed = row
            with suppress(*_DAMAGE):
                decode_source(unsigned(epoch), hello)
                if all(map(_is_count, counts)) and (closed is None or _is_count(closed)):
                    found.append(row)
        return found

    def _copy_batches(self, old: sqlite3.Connection, new: sqlite3.Connection) -> tuple[int, int]:
        """Keep the batches of known sources, the newest first; returns the numbers of the oldest and the newest one kept."""
        until, oldest, newest = self._clock() + _SECONDS, 0, 0
        for row in newest_first(old, BATCH_COLUMNS, "batches", "id"):
            number = row[0]
            if number <= self._counted and (self._left <= 0 or self._clock() > until):
                break
            contents = self._proven(row)
            if contents is None:
                continue
            _put(new, row, contents)
            oldest, newest = number, newest or number
            highest, last = self._epochs[row[1]]
            self._epochs[row[1]] = max(highest, row[2]), max(last, number)
            self._left -= len(row[4])
            self._kept += 1
            if self._kept % _AT_ONCE == 0:
                new.execute("COMMIT")
                new.execute("BEGIN")
        return oldest, newest

    def _proven(self, row: Sequence[Any]) -> BatchColumns | None:
        """Return the contents of a batch; None if it is damaged or its source is unknown."""
        number, epoch, _, received, *_ = row
        if epoch not in self._epochs or number <= 0 or not _is_count(received):
            return None
        with suppress(*_DAMAGE, IndexError):
            logged = logged_of(row)
            contents = BatchColumns(parse_batch(logged), logged.body)
            # They read what parsing alone does not.
            kind_rows(contents), request_keys(contents)
            return contents
        return None

    def _put_sources(self, new: sqlite3.Connection, sources: Sequence[tuple[Any, ...]]) -> None:
        for epoch, hello, watermark, opened, seen, closed in sources:
            source = decode_source(unsigned(epoch), hello)
            highest, newest = self._epochs[epoch]
            self._short += max(0, watermark - highest)
            new.execute(
                "INSERT OR REPLACE INTO sources VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (epoch, hello, *source.key, source.process, max(watermark, highest), opened, seen, closed, newest),
            )  # fmt: skip

    def _account(self, old: sqlite3.Connection, new: sqlite3.Connection, oldest: int, last: int) -> str:
        """Store how much of the log is missing and the cursors; return it as a text."""
        for (number,) in _some(old, "SELECT seq FROM sqlite_sequence WHERE name = 'batches'"):
            if _is_count(number) and number <= max(last, self._counted) + _MOST_MISSING:
                last = max(last, number)
        if self._counted > last:
            self._counted = 0
            new.execute("DELETE FROM folds")
        new.execute("DELETE FROM sqlite_sequence WHERE name = 'batches'")
        new.execute("INSERT INTO sqlite_sequence VALUES ('batches', ?)", (last,))
        gone = self._copy_positions(old, new, last)
        lost = max(0, last - gone - self._kept, 0 if gone else self._short)
        new.execute(
            "INSERT INTO meta VALUES ('lost_batches', ?) ON CONFLICT (key) DO UPDATE SET value = value + excluded.value",
            (lost,),
        )
        since = f" (from number {oldest})" if oldest else ""
        return f"{self._kept} of {last - gone} batches of the log were kept{since}; {self._counters(new, last, whole=not (lost or gone))}"

    def _copy_positions(self, old: sqlite3.Connection, new: sqlite3.Connection, last: int) -> int:
        """Copy the count of pruned batches, the export's cursor and the open deferrals; return the count."""
        gone = unexported = 0
        for batches, late in _some(old, "SELECT batches, unexported FROM pruned"):
            if _is_count(batches) and _is_count(late) and late <= batches <= last:
                gone, unexported = batches, late
        new.execute("UPDATE pruned SET batches = ?, unexported = ?", (gone, unexported))
        for low, exported in _some(old, "SELECT low, exported FROM cursors WHERE name = 'traces'"):
            if _is_count(low) and _is_count(exported) and max(low - 1, exported) <= last:
                new.execute("INSERT INTO cursors VALUES ('traces', ?, ?)", (low, exported))
        self._copy_deferrals(old, new)
        return gone

    def _counters(self, new: sqlite3.Connection, last: int, *, whole: bool) -> str:
        """Return a text about the counters."""
        if not self._counted:
            return f"the counters are made again from {'the whole log' if whole else 'these, and begin anew'}"
        (kept,) = new.execute("SELECT count(*) FROM batches WHERE id > ?", (self._counted,)).fetchone()
        missing = last - self._counted - kept
        return f"the counters go on{f' without {missing} of those' if missing else ' and miss none'}"

    def _copy_deferrals(self, old: sqlite3.Connection, new: sqlite3.Connection) -> None:
        for row in _some(old, "SELECT epoch, request_id, reason, start, batch FROM open_deferrals"):
            if row[0] in self._epochs and isinstance(row[3], bytes):
                new.execute("INSERT OR IGNORE INTO open_deferrals VALUES (?, ?, ?, ?, ?)", row)


def newest_first(
    database: sqlite3.Connection, columns: str, table: str, key: str
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of *table* from the highest *key*, its rowid and the first of *columns*, to the lowest; steps over damage."""
    query = f"SELECT {columns} FROM {table} WHERE {key} <= ? ORDER BY {key} DESC"  # noqa: S608  (constants)
    below: int | None = _MAX_INTEGER
    while below is not None:
        try:
            for row in database.execute(query, (below,)):
                if not _fits(row, below):
                    break
                yield row
                below = row[0] - 1
            else:
                return
        except _DAMAGE:
            pass
        # Python reads a row ahead: the last one before the damage is there, and was not handed out.
        found, row = _one(database, query, below)
        if found and row is None:
            return
        if found and row is not None:
            yield row
            below = row[0] - 1
        else:
            below = _beyond(database, query, below)


def _one(database: sqlite3.Connection, query: str, highest: int) -> tuple[bool, tuple[Any, ...] | None]:
    """Return whether the row at *highest* or next below it can be read, and return it; None if there is none."""
    try:
        row = database.execute(f"{query} LIMIT 1", (highest,)).fetchone()
    except _DAMAGE:
        return False, None
    return row is None or _fits(row, highest), row


def _fits(row: tuple[Any, ...], highest: int) -> bool:
    """Return whether a row is plausible: a lost page may yield a row of NULLs."""
    return isinstance(row[0], int) and row[0] <= highest and row[1] is not None


def _beyond(database: sqlite3.Connection, query: str, damaged: int) -> int | None:
    """Return the highest key below *damaged* from which the rows can be read on; None if there is none."""
    step, bad = 1, damaged
    while not _one(database, query, damaged - step)[0]:
        bad = damaged - step
        step *= 2
        if damaged - step < -_MAX_INTEGER:
            return None
    good = damaged - step
    while bad - good > 1:
        middle = (bad + good) // 2
        good, bad = (middle, bad) if _one(database, query, middle)[0] else (good, middle)
    return good


def _put(new: sqlite3.Connection, row: Sequence[Any], contents: BatchColumns) -> None:
    number = row[0]
    new.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?)", row)
    kinds = [(kind, number, newest) for kind, newest in kind_rows(contents)]
    new.executemany("INSERT INTO kinds VALUES (?, ?, ?)", kinds)
    if keys := request_keys(contents):
        new.execute("INSERT INTO recent VALUES (?, ?)", (number, pack_keys(keys)))


def _some(database: sqlite3.Connection, query: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield rows up to the first damage."""
    with suppress(*_DAMAGE):
        yield from database.execute(query, values)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0


_log = structlog.get_logger(__name__)

_MODE = 0o600
# The part of the limit (1/16) that is kept of a log at least; where the damaged one leaves more room, half of that.
_SHARE = 16


def mark_damaged(path: Path, reason: str) -> None:
    """Mark the journal at *path*, so that the next :func:`replace_damaged` sets it aside."""
    _marker(path).touch(_MODE)
    _marker(path).write_text(reason, errors="replace")


def replace_damaged(path: Path, limit: int, *, salvages: bool) -> None:
    """Set the journal at *path* aside if it is known to be damaged; with *salvages*, put what can be read of it in its place.

    That is tried once: the mark goes first, so that a file which ends the process does not end the next one. The state
    directory has *limit* bytes.

    Raises:
        OSError: it cannot be moved, or the disk takes nothing; then it is where it was, for a start that has room.
        sqlite3.Error: likewise.

    """
    # What an interrupted one has left.
    for suffix in ("", "-wal", "-shm", "-journal"):
        _written(path).with_name(_written(path).name + suffix).unlink(missing_ok=True)
    reason = _damage_of(path)
    if not reason:
        return
    place = set_aside(path, reason)
    _marker(path).unlink(missing_ok=True)
    try:
        said = _salvage(place / FILE, path, limit) if salvages else ""
    except (OSError, sqlite3.Error):
        _put_back(place, path, reason)
        raise
    _log.error("the journal was damaged", place=str(place), kept=said or "nothing; counters begin anew")


def _put_back(place: Path, path: Path, reason: str) -> None:
    for part in place.iterdir():
        part.rename(path.with_name(part.name))
    place.rmdir()
    # Without the mark the next start meets the damage again.
    with suppress(OSError):
        mark_damaged(path, reason)


def _salvage(damaged: Path, path: Path, limit: int) -> str:
    """Return a text about what was kept; empty if the journal starts empty."""
    written = _written(path)
    size = max(limit // _SHARE, (limit - size_of(damaged.parent)) // 2)
    try:
        said = Salvage(damaged, written, size).run()
    except Exception as error:
        if is_unwritable(error) and not is_bad_state(error):
            written.unlink(missing_ok=True)
            raise
        # A new journal is better than none.
        _log.warning("the damaged journal could not be read", error=str(error))
        said = ""
    if said:
        written.chmod(_MODE)
        written.replace(path)
    else:
        written.unlink(missing_ok=True)
    return said


def _written(path: Path) -> Path:
    return path.with_name(f"{path.stem}.salvaged")


def _marker(path: Path) -> Path:
    return path.with_name(path.name + ".damaged")


def _damage_of(path: Path) -> str:
    """Return the damage that is known before it is opened; empty for none."""
    if _marker(path).exists():
        return _marker(path).read_text(errors="replace") or "an earlier life of the agent found damage in it"
    return "it is empty" if _was_cut_to_nothing(path) else ""


def _was_cut_to_nothing(path: Path) -> bool:
    """Return whether the file was truncated to nothing: to SQLite an empty file is a new database."""
    beside = (path.with_name(RESERVE_FILE), path.with_name(f"{path.name}-wal"))
    return path.exists() and not size_of(path) and any(size_of(place) for place in beside)
