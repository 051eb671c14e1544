"""From messages to tables, lines and trees. Pure.

The face holds what ``agentctl --help`` needs; the modules that load protobuf or YAML are imported by name.
"""

from __future__ import annotations

from penstock.agent.ctl.render import text
from penstock.agent.ctl.render.console import say

__all__ = ["say", "text"]
