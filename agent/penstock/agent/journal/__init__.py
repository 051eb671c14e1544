"""The durable log in SQLite: append, commit, read, trim."""

from __future__ import annotations

from penstock.agent.journal.bundle_writer import WindowWriter
from penstock.agent.journal.database import (
    FILE,
    MAX_INTEGER,
    connect_reader,
    create_schema,
    journal_errors,
    parse_batch,
)
from penstock.agent.journal.index import event_request_ids
from penstock.agent.journal.journal import Journal
from penstock.agent.journal.query import STEP_SECONDS, ReadBudget, Reader, SourceRow, WindowReader

__all__ = [
    "FILE",
    "MAX_INTEGER",
    "STEP_SECONDS",
    "Journal",
    "ReadBudget",
    "Reader",
    "SourceRow",
    "WindowReader",
    "WindowWriter",
    "connect_reader",
    "create_schema",
    "event_request_ids",
    "journal_errors",
    "parse_batch",
]
