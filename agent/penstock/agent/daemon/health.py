"""The agent's health, readiness and degradation."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.state import count_damaged

if TYPE_CHECKING:
    from penstock.agent.journal import Journal
    from penstock.agent.policy.sources.follower import SourceFollower
    from penstock.agent.policy.sources.nats.registry import AgentRegistration
    from penstock.agent.policy.store import PolicyDatabase
    from penstock.agent.state import DatabaseFiles, StateDirectory

REASONS = (
    "state_volatile",
    "journal_unwritable",
    "journal_damaged",
    "memory_short",
    "databases_set_aside",
    "databases_restored",
    "policies_not_copied",
    "policy_source_away",
    "registry_away",
)
"""Reasons of a degradation: values of a metric's label."""


class HealthProblem(NamedTuple):
    """One of `REASONS`, and a sentence for people."""

    reason: str
    text: str


class Health:
    """The state behind ``/healthz``, ``/readyz``, status and metrics. Parts are set as they start; any thread may read.

    Attributes:
        phase: ``starting``, ``serving`` or ``draining``.
        memory_short: why nothing is taken from engines for want of memory; empty while it is.
        not_copied: why the copy of the policies is old; empty while it is not.

    """

    def __init__(self) -> None:
        self.phase = "starting"
        self.place: StateDirectory | None = None
        self.journal: Journal | None = None
        self.policies: PolicyDatabase | None = None
        self.sources: SourceFollower | None = None
        self.registration: AgentRegistration | None = None
        self.memory_short = ""
        self.not_copied = ""

    def health(self) -> str:
        """Return why the agent does not work; empty while it does."""
        if self.journal is None:
            return ""
        return self.journal.damage or ("" if self.journal.alive else "the journal's writer has ended")

    def readiness(self) -> str:
        """Return why the agent is not ready for engines; empty if it is."""
        if self.phase != "serving":
            return f"the agent is {self.phase}"
        return (self.journal.error if self.journal is not None else "") or self.memory_short

    def degraded(self) -> str:
        """Return all problems as one text; empty for none."""
        return "; ".join(trouble.text for trouble in self.troubles())

    def troubles(self) -> list[HealthProblem]:
        """Return the present problems."""
        journal, place = self.journal, self.place
        texts = {
            "state_volatile": place.trouble if place is not None else "",
            "journal_unwritable": journal.error if journal is not None else "",
            "journal_damaged": journal.damage if journal is not None else "",
            "memory_short": self.memory_short,
            "databases_set_aside": _set_aside(self.set_aside()),
            "databases_restored": "; ".join(
                filter(None, (each.notice for each in self._whereabouts().values()))
            ),
            "policies_not_copied": self.not_copied,
            "policy_source_away": self.sources.problem() if self.sources is not None else "",
            "registry_away": _unregistered(self.registration),
        }
        return [HealthProblem(reason, text) for reason, text in texts.items() if text]

    def set_aside(self) -> dict[str, int]:
        """Return how many damaged databases lie in the state directory, by kind."""
        return count_damaged(self.place.path) if self.place is not None else {}

    def restored(self) -> dict[str, int]:
        """Return how often a removed or replaced database was restored, by kind."""
        return {kind: each.restored for kind, each in self._whereabouts().items()}

    def _whereabouts(self) -> dict[str, DatabaseFiles]:
        databases = {"journal": self.journal, "policy": self.policies}
        return {kind: each.whereabouts for kind, each in databases.items() if each is not None}


def _unregistered(registration: AgentRegistration | None) -> str:
    if registration is None or not registration.error:
        return ""
    return f"the agent is not in the registry, so relays cannot find it: {registration.error}"


def _set_aside(counts: dict[str, int]) -> str:
    parts = [f"{count} of {kind}" for kind, count in sorted(counts.items()) if count]
    if not parts:
        return ""
    return (
        f"databases were set aside ({', '.join(parts)}): look at state.corrupt-* in the state directory, "
        "then move them away"
    )
