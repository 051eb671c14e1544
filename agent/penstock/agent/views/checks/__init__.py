"""The checks of ``agentctl doctor``. Pure."""

from __future__ import annotations

from penstock.agent.views.checks.agent_checks import (
    AGENT,
    check_agent,
    check_pairs,
    check_relay,
    check_rollouts,
)
from penstock.agent.views.checks.cause_checks import Judgement, check_causes
from penstock.agent.views.checks.findings import NOTE, OK, WRONG, Finding, count_problems
from penstock.agent.views.checks.order_checks import (
    Orders,
    break_glass_finding,
    check_orders,
    drill_findings,
    quarantine_findings,
)

__all__ = [
    "AGENT",
    "NOTE",
    "OK",
    "WRONG",
    "Finding",
    "Judgement",
    "Orders",
    "break_glass_finding",
    "check_agent",
    "check_causes",
    "check_orders",
    "check_pairs",
    "check_relay",
    "check_rollouts",
    "count_problems",
    "drill_findings",
    "quarantine_findings",
]
