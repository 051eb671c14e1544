"""The rules, pure: policy values, decisions, recompute budget, circuit breakers, deadlines, drills."""

from __future__ import annotations

from penstock.instrumentation.resilience.circuit_breaker import Admit, BreakerState, PeerFailure, Rules
from penstock.instrumentation.resilience.deadlines import (
    DeadlineLimits,
    Deadlines,
    Overdue,
    WaitKind,
    exceeded_deadline,
)
from penstock.instrumentation.resilience.decisions import (
    Budgets,
    DecidedBy,
    Decision,
    DecisionLog,
    EcLoss,
    KvLoss,
    LoggedDecision,
    Outcome,
    Trigger,
    decide_ec,
    decide_kv,
)
from penstock.instrumentation.resilience.fault_drills import MAX_ACTIVE, SLOW, Drill, Drills
from penstock.instrumentation.resilience.orders import NO_ORDERS, Orders
from penstock.instrumentation.resilience.policy import (
    NO_POLICY,
    Action,
    Deferral,
    EcLoadFailure,
    KvLoadFailure,
    PeerQuarantine,
    Policy,
    PolicyBody,
    PolicySource,
    Telemetry,
)
from penstock.instrumentation.resilience.quarantine import Change, Quarantine, QuarantineOrder
from penstock.instrumentation.resilience.recompute_budget import RecomputeBudget

__all__ = [
    "MAX_ACTIVE",
    "NO_ORDERS",
    "NO_POLICY",
    "SLOW",
    "Action",
    "Admit",
    "BreakerState",
    "Budgets",
    "Change",
    "DeadlineLimits",
    "Deadlines",
    "DecidedBy",
    "Decision",
    "DecisionLog",
    "Deferral",
    "Drill",
    "Drills",
    "EcLoadFailure",
    "EcLoss",
    "KvLoadFailure",
    "KvLoss",
    "LoggedDecision",
    "Orders",
    "Outcome",
    "Overdue",
    "PeerFailure",
    "PeerQuarantine",
    "Policy",
    "PolicyBody",
    "PolicySource",
    "Quarantine",
    "QuarantineOrder",
    "RecomputeBudget",
    "Rules",
    "Telemetry",
    "Trigger",
    "WaitKind",
    "decide_ec",
    "decide_kv",
    "exceeded_deadline",
]
