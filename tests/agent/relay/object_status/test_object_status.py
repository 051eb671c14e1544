"""The status of an object, of what agents say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.relay.object_status.object_status import AgentWord, object_status

NOW = "2026-11-22T12:00:00Z"
LATER = "2026-11-22T12:00:05Z"


def _conditions(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in status["conditions"]}


@pytest.mark.parametrize(
    ("words", "missing", "accepted", "programmed", "degraded"),
    [
        ([], [], ("Unknown", "NotRead"), ("Unknown", "NoAgents"), ("Unknown", "NoAgents")),
        ([], ["a"], ("Unknown", "NotRead"), ("Unknown", "AgentsAway"), ("True", "AgentsAway")),
        (
            [AgentWord("a", current=True, matched=2, in_force=2)],
            [],
            ("True", "Accepted"),
            ("True", "Programmed"),
            ("False", "Healthy"),
        ),
        (
            [AgentWord("a", current=True, matched=2, in_force=1)],
            [],
            ("True", "Accepted"),
            ("False", "Pending"),
            ("False", "Healthy"),
        ),
        (
            [AgentWord("a", current=True, matched=2, in_force=2), AgentWord("b", current=False)],
            [],
            ("True", "Accepted"),
            ("False", "Pending"),
            ("True", "OtherContent"),
        ),
        (
            [
                AgentWord("a", current=True, matched=2, in_force=2),
                AgentWord("b", current=False, refusal="no"),
            ],
            ["c"],
            ("False", "Refused"),
            ("False", "Pending"),
            ("True", "AgentsAway"),
        ),
        (
            [AgentWord("a", current=True)],
            [],
            ("True", "Accepted"),
            ("False", "NoEngines"),
            ("False", "Healthy"),
        ),
        (
            [AgentWord("a", current=True, matched=2, in_force=2)],
            ["b", "c", "d", "e"],
            ("True", "Accepted"),
            ("Unknown", "AgentsAway"),
            ("True", "AgentsAway"),
        ),
    ],
)
def test_conditions(words, missing, accepted, programmed, degraded) -> None:
    """Each condition by what agents say."""
    found = object_status(3, words, missing, {}, NOW)
    assert _conditions(found) == {"Accepted": accepted, "Programmed": programmed, "Degraded": degraded}
    assert all(each["message"] for each in found["conditions"])


WORDS = st.lists(
    st.builds(
        AgentWord,
        st.text("abc", min_size=1, max_size=2),
        current=st.booleans(),
        matched=st.integers(0, 3),
        in_force=st.integers(0, 3),
        refusal=st.sampled_from(["", "no"]),
    ),
    max_size=5,
)


@given(WORDS, st.lists(st.text("xyz", min_size=1, max_size=2), max_size=5), WORDS)
def test_a_status_that_does_not_change_is_not_written(
    words: list[AgentWord], missing: list[str], others: list[AgentWord]
) -> None:
    """The same words later give the same status; a time changes only with its condition's status."""
    before = object_status(1, words, missing, {}, NOW)
    assert object_status(1, words, missing, before, LATER) == before
    after = object_status(2, others, missing, before, LATER)
    known = {each["type"]: each for each in before["conditions"]}
    for each in after["conditions"]:
        same = each["status"] == known[each["type"]]["status"]
        assert each["lastTransitionTime"] == (NOW if same else LATER)
        assert each["observedGeneration"] == 2
