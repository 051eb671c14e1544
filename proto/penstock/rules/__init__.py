"""The rules of both sides, pure: policy values, decisions, recompute budget, circuit breakers, deadlines."""

from __future__ import annotations

from penstock.rules.circuit_breaker import (
    Admit,
    BreakerState,
    PeerFailure,
    Rules,
)
from penstock.rules.deadlines import (
    DeadlineLimits,
    Deadlines,
    Overdue,
    WaitKind,
    exceeded_deadline,
)
from penstock.rules.decisions import (
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
    trigger_of,
)
from penstock.rules.integrity_rule import IntegrityRule, integrity_rule
from penstock.rules.obstacles import EXPORTED, HELD, MEDIA_ELSEWHERE, PINNED, WITHOUT_MEDIA
from penstock.rules.policy import (
    NO_POLICY,
    Action,
    Deferral,
    EcLoadFailure,
    Integrity,
    IntegrityAction,
    KvLoadFailure,
    PeerQuarantine,
    Policy,
    PolicyBody,
    PolicySource,
    Telemetry,
)
from penstock.rules.quarantine import (
    Change,
    Quarantine,
    QuarantineOrder,
)
from penstock.rules.recompute_budget import (
    RecomputeBudget,
)

__all__ = [
    "EXPORTED",
    "HELD",
    "MEDIA_ELSEWHERE",
    "NO_POLICY",
    "PINNED",
    "WITHOUT_MEDIA",
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
    "EcLoadFailure",
    "EcLoss",
    "Integrity",
    "IntegrityAction",
    "IntegrityRule",
    "KvLoadFailure",
    "KvLoss",
    "LoggedDecision",
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
    "integrity_rule",
    "trigger_of",
]
