"""Results of a change and its rollout: printed engine by engine, and waited for."""

from __future__ import annotations

from penstock.agent.ctl.rollout.progress import (
    DEFAULT_TIMEOUT,
    GRACE,
    follow_rollout,
    show_change,
    show_fields,
    show_shares,
    show_warnings,
    told,
)
from penstock.agent.ctl.rollout.wait import Followed, change_name, conclude, time_left, wait_for

__all__ = [
    "DEFAULT_TIMEOUT",
    "GRACE",
    "Followed",
    "change_name",
    "conclude",
    "follow_rollout",
    "show_change",
    "show_fields",
    "show_shares",
    "show_warnings",
    "time_left",
    "told",
    "wait_for",
]
