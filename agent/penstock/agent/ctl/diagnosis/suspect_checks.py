"""Tells of answers that may be wrong. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from penstock.agent.ctl.diagnosis.findings import NOTE, WRONG, Finding
from penstock.agent.ctl.render import text
from penstock.proto.v1.events_pb2 import SuspectReason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.proto.v1 import admin_pb2 as admin


def check_suspects(response: admin.ListSuspectsResponse) -> Iterator[Finding]:
    """Yield a finding if answers of the last hour may be wrong, or if it cannot be known; drills do not count."""
    suspects = [item for item in response.suspects if not item.rehearsal]
    if not suspects:
        if response.truncated:
            yield Finding(
                NOTE,
                "answers",
                "the log of the last hour has more than could be searched for answers that may be wrong; none is known",
                "agentctl get suspects --since 5m searches less; metrics count what engines suspect themselves",
            )
        return
    reasons = Counter(text.word(SuspectReason, reason) for item in suspects for reason in item.reasons)
    listed = ", ".join(f"{number} {reason}" for reason, number in sorted(reasons.items()))
    least = "at least " if response.truncated else ""
    yield Finding(
        WRONG,
        "answers",
        f"{least}{text.count(len(suspects), 'answer')} of the last hour may be wrong ({listed})",
        "agentctl get suspects names them and says why",
    )
