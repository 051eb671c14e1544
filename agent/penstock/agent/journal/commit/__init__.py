"""The writer: one thread that commits batches and trims the log."""

from __future__ import annotations

from penstock.agent.journal.commit.retention import Retention, Usage
from penstock.agent.journal.commit.transaction import Append, Appended, Command, Open
from penstock.agent.journal.commit.writer import Writer

__all__ = ["Append", "Appended", "Command", "Open", "Retention", "Usage", "Writer"]
