"""Recompute budgets on a clock that stands still, for tests."""

from __future__ import annotations

from penstock.instrumentation.resilience.decisions import Budgets
from penstock.instrumentation.resilience.recompute_budget import RecomputeBudget

from tests.support.manual_clock import ManualClock


def budget(clock, rate, largest):
    """Give a full budget."""
    budget = RecomputeBudget(clock)
    budget.configure(rate, largest)
    return budget


def budgets(rate=None, largest=None):
    """Give two budgets of the same limits."""
    clock = ManualClock()
    return Budgets(budget(clock, rate, largest), budget(clock, rate, largest))
