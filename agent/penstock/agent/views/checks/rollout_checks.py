"""Checks of the roll-outs: those that wait for a person, and those that were taken back. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.views import text as words
from penstock.agent.views.checks.findings import NOTE, OK, Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.proto.v1 import admin_pb2 as admin

_ADVICE = {
    "undecided": "'agentctl rollout status {name}' shows the numbers; 'agentctl rollout promote {name}' or "
    "'agentctl rollout abort {name}' ends it",
    "paused": "'agentctl rollout resume {name}' goes on, 'agentctl rollout abort {name}' takes the policy back",
    "aborted": "correct policy {name} and start again, or 'agentctl delete policy {name}'; "
    "'agentctl rollout history {name}' has the steps",
}


def check_rollouts(rollouts: Iterable[admin.PolicyRollout], now: float) -> Iterator[Finding]:
    """Check what became of *rollouts*; *now*: seconds since the epoch."""
    for each in rollouts:
        subject, message = f"rollout {each.name}", words.one_line(each.message, 300)
        if each.state == "progressing":
            yield Finding(OK, subject, message)
        elif each.state == "undecided":
            over = words.ago_of(each.step_ends, now)
            yield Finding(
                NOTE,
                subject,
                f"its hold ended {over}: {message}",
                _ADVICE["undecided"].format(name=each.name),
            )
        elif each.state in _ADVICE:
            yield Finding(NOTE, subject, message, _ADVICE[each.state].format(name=each.name))
