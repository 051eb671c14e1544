"""The rules, pure: policy values, decisions, recompute budget, circuit breakers, deadlines, drills."""

from __future__ import annotations

from penstock.instrumentation.resilience.circuit_breaker import Admit, Failure, Rules, State
from penstock.instrumentation.resilience.deadlines import Deadlines, Limits, Overdue, Wait, exceeded
from penstock.instrumentation.resilience.decisions import (
    Budgets,
    DecidedBy,
    Decision,
    EcLoss,
    KvLoss,
    Outcome,
    Trigger,
    decide_ec,
    decide_kv,
)
from penstock.instrumentation.resilience.fault_drills import MAX_ACTIVE, SLOW, Drill, Drills
from penstock.instrumentation.resilience.ledger import Ledger, Settled
from penstock.instrumentation.resilience.orders import NO_DIRECTIVES, Directives
from penstock.instrumentation.resilience.policy import (
    NO_POLICY,
    Action,
    Deferral,
    EcLoadFailure,
    KvLoadFailure,
    PeerQuarantine,
    Policy,
    PolicyBody,
    Telemetry,
)
from penstock.instrumentation.resilience.quarantine import Change, Order, Quarantine
from penstock.instrumentation.resilience.recompute_budget import RecomputeBudget

__all__ = [
    "MAX_ACTIVE",
    "NO_DIRECTIVES",
    "NO_POLICY",
    "SLOW",
    "Action",
    "Admit",
    "Budgets",
    "Change",
    "Deadlines",
    "DecidedBy",
    "Decision",
    "Deferral",
    "Directives",
    "Drill",
    "Drills",
    "EcLoadFailure",
    "EcLoss",
    "Failure",
    "KvLoadFailure",
    "KvLoss",
    "Ledger",
    "Limits",
    "Order",
    "Outcome",
    "Overdue",
    "PeerQuarantine",
    "Policy",
    "PolicyBody",
    "Quarantine",
    "RecomputeBudget",
    "Rules",
    "Settled",
    "State",
    "Telemetry",
    "Trigger",
    "Wait",
    "decide_ec",
    "decide_kv",
    "exceeded",
]
