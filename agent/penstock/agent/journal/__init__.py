"""The log of received batches: append, commit, watermark; and its readers."""

from penstock.agent.journal.journal import Journal
from penstock.agent.journal.reader import Reader
from penstock.agent.model import AGENT_PROCESS

__all__ = ["AGENT_PROCESS", "Journal", "Reader"]
