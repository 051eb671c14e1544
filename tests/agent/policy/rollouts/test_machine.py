"""What becomes of a roll-out: tables, and rules for any history."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.errors import ContractError, ImpossibleError
from penstock.agent.policy.rollouts import machine
from penstock.agent.policy.rollouts.comparison import Comparison, parse_condition
from penstock.agent.policy.rollouts.state import (
    ANNOTATION,
    RolloutPlan,
    RolloutState,
    content_of,
    state_of,
    with_state,
)

from tests.support.policy.policies import manifest

if TYPE_CHECKING:
    from penstock.agent.policy.rollouts.comparison import Verdict

NOW = 1_800_000_000.0
PLAN = RolloutPlan(hold=600.0)


def found(*verdicts: Verdict) -> tuple[Comparison, ...]:
    """Return comparisons with these verdicts."""
    return tuple(
        Comparison(parse_condition("failed>2x"), verdict, f"evidence {index}")
        for index, verdict in enumerate(verdicts)
    )


def begun(plan: RolloutPlan = PLAN) -> RolloutState:
    """Return a roll-out that has just begun."""
    return machine.start_rollout(plan, author="me@host", content="c", percent=0, now=NOW)


def observe(state: RolloutState, now: float, comparisons: tuple[Comparison, ...]) -> RolloutState:
    """Look at *now*, with a leader since the step began."""
    return machine.observe(state, now, comparisons, held=now - state.began)


@pytest.mark.parametrize(
    ("after", "verdicts", "phase", "percent", "message"),
    [
        (0, ("undecided",), "progressing", 5, "at 5 %: started by me@host"),
        (599, ("not_worse", "not_worse"), "progressing", 5, "at 5 %: started by me@host"),
        (600, ("not_worse", "not_worse"), "progressing", 25, "at 25 %: 5 % held for 10 min, no worse"),
        (600, (), "progressing", 25, "at 25 %: 5 % held for 10 min"),
        (1, ("undecided", "worse"), "aborted", 0, "aborted at 5 %: evidence 1"),
        (900, ("worse", "worse"), "aborted", 0, "aborted at 5 %: evidence 0; evidence 1"),
        (
            600,
            ("not_worse", "undecided"),
            "undecided",
            5,
            (
                "undecided at 5 %: evidence 1; it waits for evidence, or for 'agentctl rollout promote' or "
                "'agentctl rollout abort'"
            ),
        ),
    ],
)
def test_a_look(after: float, verdicts: tuple[Verdict, ...], phase: str, percent: int, message: str) -> None:
    """From the first step."""
    state = observe(begun(), NOW + after, found(*verdicts))
    assert (state.phase, state.percent, state.message) == (phase, percent, message)


def test_steps_lead_to_all_engines() -> None:
    """Each with a test of its own; then it is over."""
    state, seen = begun(), []
    for look in range(1, 5):
        seen.append((state.percent, state.tests, state.phase))
        state = observe(state, NOW + 601 * look, found("not_worse"))
    assert seen == [(5, 1, "progressing"), (25, 2, "progressing"), (100, 2, "promoted"), (100, 2, "promoted")]


def test_an_undecided_one_goes_on_with_evidence_or_by_its_plan() -> None:
    """Evidence may come later; a plan may say that none is needed."""
    waiting = observe(begun(), NOW + 700, found("undecided"))
    assert observe(waiting, NOW + 701, found("undecided")) is waiting
    assert observe(waiting, NOW + 702, found("not_worse")).percent == 25
    assert observe(waiting, NOW + 702, found("worse")).phase == "aborted"
    bold = observe(begun(replace(PLAN, proceed_undecided=True)), NOW + 700, found("undecided"))
    assert (bold.percent, bold.message) == (25, "at 25 %: 5 % held for 11.7 min, undecided")


@pytest.mark.parametrize(
    ("action", "phase", "percent"),
    [("pause", "paused", 5), ("promote", "promoted", 100), ("abort", "aborted", 0)],
)
def test_a_person_decides(action: str, phase: str, percent: int) -> None:
    """And is named."""
    state = machine.command(begun(), action, author="eve@host", reason="INC-7", now=NOW + 5)
    assert (state.phase, state.percent) == (phase, percent)
    assert "by eve@host: INC-7" in state.message


def test_a_pause_stops_the_clock() -> None:
    """The step begins again when it is resumed, and so does its test."""
    paused = machine.command(begun(), "pause", author="me", reason="", now=NOW)
    assert observe(paused, NOW + 9_999, found("worse")) is paused
    resumed = machine.command(paused, "resume", author="me", reason="", now=NOW + 5_000)
    assert (resumed.began, resumed.tests, resumed.percent, resumed.phase) == (
        NOW + 5_000,
        2,
        5,
        "progressing",
    )


@pytest.mark.parametrize(
    ("state", "action", "text"),
    [
        (begun(), "resume", "it cannot resume"),
        (replace(begun(), phase="paused"), "pause", "it cannot pause"),
        (replace(begun(), phase="aborted"), "promote", "is aborted; 'agentctl rollout start' begins another"),
        (replace(begun(), phase="promoted"), "abort", "is promoted"),
    ],
)
def test_what_a_phase_does_not_allow(state: RolloutState, action: str, text: str) -> None:
    """With a sentence."""
    with pytest.raises(ImpossibleError, match=text):
        machine.command(state, action, author="me", reason="", now=NOW)


def test_an_unknown_action_is_named() -> None:
    """With those that there are."""
    with pytest.raises(ContractError, match="start, pause, resume, promote, abort"):
        machine.command(begun(), "hurry", author="me", reason="", now=NOW)


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (RolloutPlan(()), "the steps are empty"),
        (RolloutPlan((5, 5, 100)), "ascending percents"),
        (RolloutPlan((0, 100)), "ascending percents"),
        (RolloutPlan((5, 25)), "the last one must be 100"),
        (RolloutPlan((5, 125)), "the last one must be 100"),
        (RolloutPlan(hold=0), "give a duration up to 7 days"),
        (RolloutPlan((*tuple(range(1, 17)), 100)), "at most 16"),
    ],
)
def test_a_bad_plan_is_refused(plan: RolloutPlan, text: str) -> None:
    """Before anything is written."""
    with pytest.raises(ContractError, match=text):
        begun(plan)


def test_a_start_takes_the_policy_from_no_engine() -> None:
    """A policy in more engines than the first step."""
    with pytest.raises(ImpossibleError, match="would take it away"):
        machine.start_rollout(PLAN, author="me", content="c", percent=100, now=NOW)
    assert machine.start_rollout(PLAN, author="me", content="c", percent=5, now=NOW).percent == 5


HISTORIES = st.lists(
    st.tuples(
        st.floats(0, 2_000),
        st.one_of(
            st.lists(st.sampled_from(["worse", "not_worse", "undecided"]), max_size=3),
            st.sampled_from(["pause", "resume", "promote", "abort"]),
        ),
    ),
    max_size=20,
)


@given(HISTORIES, st.booleans())
def test_any_history_keeps_the_rules(history, bold: bool) -> None:
    """Percent only grows but for an abort, never by a look that saw worse or before the hold; the end is the end."""
    state, now = begun(replace(PLAN, proceed_undecided=bold)), NOW
    for seconds, what in history:
        now += seconds
        before = state
        if isinstance(what, str):
            try:
                state = machine.command(state, what, author="me", reason="", now=now)
            except ImpossibleError:
                assert state is before
        else:
            state = observe(state, now, found(*what))
            if state.percent > before.percent:
                assert now >= before.ends
                assert "worse" not in what
                assert bold or "undecided" not in what
            if not before.live or before.phase == "paused":
                assert state is before
        assert state.percent >= before.percent or state.phase == "aborted"
        assert (state.phase == "aborted") == (state.percent == 0)
        assert state.tests >= before.tests
        kept = with_state(manifest("p"), state)
        assert state_of(kept) == state
        assert (kept.percent, kept.reason) == (state.percent, state.message)


def test_the_state_is_in_the_policy() -> None:
    """The content that is rolled out has neither the percentage nor the annotation."""
    policy = manifest("p", rollout={"percent": 3})
    kept = with_state(policy, begun())
    assert content_of(kept) == content_of(policy) == content_of(manifest("p"))
    assert content_of(manifest("p", priority=5)) != content_of(policy)
    assert state_of(policy) is None


@pytest.mark.parametrize("moment", ["started", "began"])
@pytest.mark.parametrize("seconds", ["1e400", "-1", "NaN", "1e10"])
def test_a_time_that_no_clock_shows_is_no_rollout(moment: str, seconds: str) -> None:
    """Nothing computes with it."""
    document = with_state(manifest("p"), begun()).document()
    state = json.loads(document["metadata"]["annotations"][ANNOTATION])
    text = json.dumps({**state, moment: 0}).replace(f'"{moment}": 0', f'"{moment}": {seconds}')
    document["metadata"]["annotations"][ANNOTATION] = text
    assert state_of(type(manifest("p")).model_validate(document)) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"phase":"progressing"}', "null", "[" * 2_000])
def test_an_annotation_that_is_not_ours_is_no_rollout(text: str) -> None:
    """People write annotations, too."""
    document = manifest("p").document()
    document["metadata"]["annotations"] = {ANNOTATION: text}
    assert state_of(type(manifest("p")).model_validate(document)) is None
