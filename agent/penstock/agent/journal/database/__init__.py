"""The database file: its schema and connections, the bytes of batches and sources, its integrity and its disk space."""

from __future__ import annotations

from penstock.agent.journal.database.connection import (
    MAX_INTEGER,
    WalCheckpointer,
    blob,
    connect,
    connect_reader,
    journal_errors,
    limit_to,
    run_to_end,
    signed,
    unsigned,
    whole,
)
from penstock.agent.journal.database.schema import (
    FILE,
    RESERVE_FILE,
    DiskReserve,
    Opened,
    create_schema,
    open_database,
)
from penstock.agent.journal.database.stored_rows import (
    BATCH_COLUMNS,
    BatchParser,
    decode_source,
    encode_source,
    event_of,
    logged_of,
    pack,
    parse_batch,
)

__all__ = [
    "BATCH_COLUMNS",
    "FILE",
    "MAX_INTEGER",
    "RESERVE_FILE",
    "BatchParser",
    "DiskReserve",
    "Opened",
    "WalCheckpointer",
    "blob",
    "connect",
    "connect_reader",
    "create_schema",
    "decode_source",
    "encode_source",
    "event_of",
    "journal_errors",
    "limit_to",
    "logged_of",
    "open_database",
    "pack",
    "parse_batch",
    "run_to_end",
    "signed",
    "unsigned",
    "whole",
]
