"""Adds up what failed loads, waits and recomputation cost, from the events of the log. Pure."""

from __future__ import annotations

from penstock.agent.bill.account import KINDS, BillAccount
from penstock.agent.bill.costs import (
    MAX_LINES,
    SAMPLE_REQUESTS,
    SAMPLE_TOKENS,
    Charge,
    Costs,
    Price,
    bounded_lines,
    costs_message,
    group_lines,
    in_order,
    price_message,
    sum_costs,
)

__all__ = [
    "KINDS",
    "MAX_LINES",
    "SAMPLE_REQUESTS",
    "SAMPLE_TOKENS",
    "BillAccount",
    "Charge",
    "Costs",
    "Price",
    "bounded_lines",
    "costs_message",
    "group_lines",
    "in_order",
    "price_message",
    "sum_costs",
]
