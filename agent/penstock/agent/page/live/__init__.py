"""What comes to the tabs by itself: screens, entries of the log, and a pulse."""

from __future__ import annotations

from penstock.agent.page.live.entries import KINDS, Message, log_entry, message
from penstock.agent.page.live.history import MAX_SECONDS
from penstock.agent.page.live.hub import MAX_TABS, Hub
from penstock.agent.page.live.tab import MAX_ID_CHARACTERS, Positions, Tab, read

__all__ = [
    "KINDS",
    "MAX_ID_CHARACTERS",
    "MAX_SECONDS",
    "MAX_TABS",
    "Hub",
    "Message",
    "Positions",
    "Tab",
    "log_entry",
    "message",
    "read",
]
