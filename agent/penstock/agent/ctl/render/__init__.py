"""From messages to tables, lines and trees. Pure; only what ``agentctl --help`` needs is in the face."""

from __future__ import annotations

from penstock.agent.ctl.render import text
from penstock.agent.ctl.render.console import say

__all__ = ["say", "text"]
