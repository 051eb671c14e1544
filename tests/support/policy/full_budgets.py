"""Recompute budgets on a clock that stands still, for tests."""

from __future__ import annotations

from penstock.rules.decisions import Budgets
from penstock.rules.recompute_budget import RecomputeBudget

from tests.support.manual_clock import ManualClock


def full_budget(clock, rate, largest):
    """Return a full budget: *rate* in tokens per second, *largest* in tokens."""
    budget = RecomputeBudget(clock)
    budget.configure(rate, largest)
    return budget


def full_budgets(rate=None, largest=None):
    """Return two full budgets of the same limits."""
    clock = ManualClock()
    return Budgets(full_budget(clock, rate, largest), full_budget(clock, rate, largest))
