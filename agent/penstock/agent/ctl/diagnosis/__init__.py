"""What doctor checks. Pure but for the socket probe."""

from __future__ import annotations

from penstock.agent.ctl.diagnosis.agent_checks import AGENT, examine
from penstock.agent.ctl.diagnosis.findings import NOTE, OK, WRONG, Finding, wrong
from penstock.agent.ctl.diagnosis.socket_probe import why

__all__ = [
    "AGENT",
    "NOTE",
    "OK",
    "WRONG",
    "Finding",
    "examine",
    "why",
    "wrong",
]
