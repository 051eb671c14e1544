"""The durable log in SQLite: append, commit, read, trim."""

from __future__ import annotations

from penstock.agent.journal.batch_parser import parse_batch
from penstock.agent.journal.connection import MAX_INTEGER, connect_reader, journal_errors
from penstock.agent.journal.index_keys import event_request_ids
from penstock.agent.journal.journal import Journal
from penstock.agent.journal.read_budget import STEP_SECONDS, ReadBudget
from penstock.agent.journal.reader import Reader
from penstock.agent.journal.schema import FILE

__all__ = [
    "FILE",
    "MAX_INTEGER",
    "STEP_SECONDS",
    "Journal",
    "ReadBudget",
    "Reader",
    "connect_reader",
    "event_request_ids",
    "journal_errors",
    "parse_batch",
]
