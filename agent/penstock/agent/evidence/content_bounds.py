"""What the content of a bundle may hold: anybody may have made it, and a few kilobytes expand to gigabytes."""

from __future__ import annotations

import math
import zlib
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.timestamp_pb2 import Timestamp
from penstock.agent.bundle import JOURNAL, POLICIES, STATE, check_values
from penstock.agent.errors import BundleError
from penstock.agent.journal import connect_reader
from penstock.agent.parsing import format_size

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator
    from pathlib import Path

    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.message import Message
    from penstock.proto.v1.bundle_pb2 import BundledState

# 50,000 series have the half of it.
_MAX_COUNTERS: Final = 4_000_000
# An agent keeps 10,000 sources that have ended.
_MAX_ENTRIES: Final = 50_000
# Of the tables that are read as a whole; of the others a row.
_MAX_TABLE: Final = 64 << 20
_MAX_ROWS: Final = 200_000
_MAX_ROW: Final = 16 << 20
_PIECE: Final = 1 << 20
# Until 2554: what nanoseconds of 64 bits count. An engine's clock may be that wrong, and its agent keeps what it says.
_MAX_SECONDS: Final = (1 << 64) / 1e9

_WHOLE: Final = {
    JOURNAL: {
        "meta": "value",
        "sources": "hello",
        "open_deferrals": "start",
        "folds": "body",
        "cursors": "name",
    },
    POLICIES: {"policy": "manifest", "pause": "engine", "timed_order": "document"},
}
_BY_ROW: Final = {
    JOURNAL: {"batches": "body", "recent": "keys", "runs": "passing", "buckets": "body"},
    POLICIES: {"audit": "new_manifest"},
}


def check_state(state: BundledState) -> None:
    """Check the entries, times and numbers of the agent's memory.

    Raises:
        BundleError: there are more than an agent keeps, or one lies outside of what a clock shows.

    """
    for field, value in state.ListFields():
        if field.is_repeated and len(value) > _MAX_ENTRIES:
            raise BundleError(
                f"its {STATE} has {len(value):,} {field.name}; an agent keeps at most {_MAX_ENTRIES:,}"
            )
    _check_message(state)


def _check_message(message: Message) -> None:
    if isinstance(message, Timestamp):
        if not 0 <= message.seconds <= _MAX_SECONDS:
            raise BundleError(f"its {STATE} has a time before 1970 or after 2554; it is damaged")
        return
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        for each in value if field.is_repeated else (value,):
            if field.message_type is not None:
                _check_message(each)
            elif _does_not_fit(field, each):
                raise BundleError(
                    f"its {STATE} has {field.name} {each!r:.40}, which no clock shows; it is damaged"
                )


def _does_not_fit(field: FieldDescriptor, value: Any) -> bool:
    return isinstance(value, float) and (
        not math.isfinite(value) or (field.name.endswith("seconds") and abs(value) > _MAX_SECONDS)
    )


def check_tables(path: Path) -> None:
    """Check the sizes of what is read at once from a database whose tables are an agent's.

    Raises:
        BundleError: more than an agent keeps.

    """
    with closing(connect_reader(path)) as database:
        for table, column in _WHOLE[path.name].items():
            rows, size, _ = _sizes(database, table, column)
            if rows > _MAX_ROWS or size > _MAX_TABLE:
                raise BundleError(
                    f"its {path.name} has {rows:,} rows and {format_size(size)} of {table}; an agent keeps less"
                )
        for table, column in _BY_ROW[path.name].items():
            _, _, largest = _sizes(database, table, column)
            if largest > _MAX_ROW:
                raise BundleError(
                    f"its {path.name} has a row of {format_size(largest)} in {table}; an agent keeps less"
                )
        if path.name == JOURNAL:
            for (body,) in database.execute("SELECT body FROM folds"):
                check_values(f"{JOURNAL} (saved metrics)", _unpacked(body), _MAX_COUNTERS)


def _sizes(database: sqlite3.Connection, table: str, column: str) -> tuple[int, int, int]:
    """Return the number of rows, the bytes of *column*, and those of the largest row."""
    row = database.execute(
        f"SELECT count(*), total(length({column})), coalesce(max(length({column})), 0) FROM {table}"  # noqa: S608  (constants)
    ).fetchone()
    return int(row[0]), int(row[1]), int(row[2])


def _unpacked(body: object) -> Iterator[bytes]:
    """Yield what was compressed, a piece at a time, as far as it can be read: what is damaged is not used later either."""
    stream, left = zlib.decompressobj(), body if isinstance(body, bytes) else b""
    try:
        while left and not stream.eof:
            yield stream.decompress(left, _PIECE)
            left = stream.unconsumed_tail
    except zlib.error:
        return
