"""What the doctor found: one thing each, and what to do about it."""

from __future__ import annotations

from typing import NamedTuple

OK, NOTE, WRONG = "ok", "note", "wrong"


class Finding(NamedTuple):
    """One thing that was looked at.

    Attributes:
        level: ``ok``, ``note`` (worth knowing, nothing to do at once) or ``wrong``.
        subject: what it is about: ``agent``, ``engine decode/0``.
        what: how it is, in words.
        advice: what to do; empty if there is nothing.

    """

    level: str
    subject: str
    what: str
    advice: str = ""


def count_problems(found: list[Finding]) -> int:
    """Count what is wrong."""
    return sum(1 for finding in found if finding.level == WRONG)
