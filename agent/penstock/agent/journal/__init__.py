"""The log of received batches: append, commit, watermark; and its readers."""

from penstock.agent.journal.journal import Journal
from penstock.agent.journal.reader import OpenDeferral, Reader

__all__ = ["Journal", "OpenDeferral", "Reader"]
