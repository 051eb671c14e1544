"""The page: one screen that says what is wrong, live, from the admin service of an agent or of a relay."""

from __future__ import annotations

from penstock.agent.page.server import PageServer, PageSource

__all__ = ["PageServer", "PageSource"]
