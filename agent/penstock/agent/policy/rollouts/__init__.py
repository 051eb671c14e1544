"""A policy to more and more engines, step by step, with a comparison that ends it; the decisions are pure."""

from __future__ import annotations

from penstock.agent.policy.rollouts.comparison import Comparison, EngineCounts, parse_conditions
from penstock.agent.policy.rollouts.leader import LOOK_SECONDS, RolloutLeader
from penstock.agent.policy.rollouts.state import (
    DEFAULT_CONDITIONS,
    DEFAULT_HOLD,
    DEFAULT_STEPS,
    MAX_HOLD,
    PHASES,
    RolloutPlan,
    Rollouts,
    RolloutState,
    state_of,
)

__all__ = [
    "DEFAULT_CONDITIONS",
    "DEFAULT_HOLD",
    "DEFAULT_STEPS",
    "LOOK_SECONDS",
    "MAX_HOLD",
    "PHASES",
    "Comparison",
    "EngineCounts",
    "RolloutLeader",
    "RolloutPlan",
    "RolloutState",
    "Rollouts",
    "parse_conditions",
    "state_of",
]
