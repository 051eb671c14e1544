"""An agent that cannot store what engines report: what they do now is not known, and nothing says that they are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.diagnosis.facts import Confidence, Evidence, FoundCause, words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.diagnosis.facts import Attribution, Facts

# Nothing is wrong with the engines; what comes first is decided by the kind.
_BLIND_SECONDS = 1.0


def agent_causes(facts: Facts, _shares: Attribution) -> Iterator[FoundCause]:
    """Yield that the agent is blind."""
    if not facts.blind:
        return
    keys = words.keys_of(words.key_of(each.key) for each in facts.engines)
    yield FoundCause(
        "agent_blind",
        f"the agent cannot store what engines report ({words.cut(facts.blind)}): engines serve without it, and what they do "
        "now is not known",
        keys,
        (
            Evidence(
                "engines keep what they have to report, each up to 32 MiB, and send it once the agent can store it"
            ),
        ),
        other_harm=_BLIND_SECONDS,
        confidence=Confidence.CERTAIN,
        alternatives=("the disk is full, read-only or broken: df and the agent's log tell",),
        commands=("agentctl doctor",),
    )
