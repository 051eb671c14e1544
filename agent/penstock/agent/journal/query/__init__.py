"""Reads the log: in order, by request, by kind, by time."""

from __future__ import annotations

from penstock.agent.journal.query.bundle_reader import WindowReader
from penstock.agent.journal.query.log_reader import SourceRow
from penstock.agent.journal.query.reader import STEP_SECONDS, ReadBudget, Reader

__all__ = ["STEP_SECONDS", "ReadBudget", "Reader", "SourceRow", "WindowReader"]
