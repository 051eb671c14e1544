"""A finding of ``agentctl doctor``."""

from __future__ import annotations

from typing import NamedTuple

OK, NOTE, WRONG = "ok", "note", "wrong"


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
        level: ``ok``, ``note`` (no action needed now) or ``wrong``.
        subject: ``agent`` or ``engine decode/0``.
        what: the state, as text.
        advice: what to do; empty for nothing.

    """

    level: str
    subject: str
    what: str
    advice: str = ""


def count_problems(found: list[Finding]) -> int:
    """Return the number of findings of level ``wrong``."""
    return sum(1 for finding in found if finding.level == WRONG)
