"""Reads the log: in order, by request, by kind, by time."""

from __future__ import annotations

from penstock.agent.journal.query.log_reader import SourceRow
from penstock.agent.journal.query.reader import STEP_SECONDS, ReadBudget, Reader
from penstock.agent.journal.query.window import WindowReader

__all__ = ["STEP_SECONDS", "ReadBudget", "Reader", "SourceRow", "WindowReader"]
