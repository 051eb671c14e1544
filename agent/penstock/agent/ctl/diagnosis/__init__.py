"""The checks of ``agentctl doctor``. Pure except for the socket probe."""

from __future__ import annotations

from penstock.agent.ctl.diagnosis.agent_checks import AGENT, check_agent
from penstock.agent.ctl.diagnosis.cause_checks import Judgement, check_causes
from penstock.agent.ctl.diagnosis.findings import NOTE, OK, WRONG, Finding, count_problems
from penstock.agent.ctl.diagnosis.order_checks import (
    Orders,
    break_glass_finding,
    check_orders,
    drill_findings,
    quarantine_findings,
)
from penstock.agent.ctl.diagnosis.pair_checks import check_pairs
from penstock.agent.ctl.diagnosis.relay_checks import check_relay
from penstock.agent.ctl.diagnosis.rollout_checks import check_rollouts
from penstock.agent.ctl.diagnosis.socket_probe import probe_address

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
    "probe_address",
    "quarantine_findings",
]
