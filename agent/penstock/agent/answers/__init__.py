"""Answers of the admin service, checked before anything of them is used: bounds, times, numbers and documents. Pure."""

from __future__ import annotations

from penstock.agent.answers.read import (
    Bounds,
    bounds_of,
    fleet_bounds_of,
    path_of,
    read_agents_answer,
    read_answer,
)

__all__ = ["Bounds", "bounds_of", "fleet_bounds_of", "path_of", "read_agents_answer", "read_answer"]
