"""The rules of a diagnosis, one file a subject: each takes the facts, and yields the causes that it finds. Pure."""

from __future__ import annotations

from penstock.agent.diagnosis.rules.all_rules import RULES
from penstock.agent.diagnosis.rules.pairs import pair_causes
from penstock.agent.diagnosis.rules.suspects import shared_causes

__all__ = ["RULES", "pair_causes", "shared_causes"]
