"""Pauses: how they combine and end. Pure."""

from __future__ import annotations

from dataclasses import replace

import pytest
from penstock.agent.model import EngineKey
from penstock.agent.policy.orders import kill_switch
from penstock.agent.policy.orders.kill_switch import ALL, Pause, PauseStates

A, B, FRONT = EngineKey("s", "0"), EngineKey("s", "1"), EngineKey("s", "")
FOREVER = Pause(author="me", began_unix_nano=1)
SHORT, LONG = replace(FOREVER, ends_unix_nano=10), replace(FOREVER, ends_unix_nano=20)


@pytest.mark.parametrize(
    ("before", "keys", "order", "after"),
    [
        ({}, {A}, FOREVER, {A: FOREVER}),
        ({A: FOREVER}, {A}, SHORT, {A: SHORT}),
        ({A: FOREVER}, {A}, None, {}),
        ({A: FOREVER}, None, SHORT, {A: FOREVER, ALL: SHORT}),
        ({A: SHORT, B: LONG}, None, SHORT, {B: LONG, ALL: SHORT}),
        ({A: LONG}, None, FOREVER, {ALL: FOREVER}),
        ({ALL: FOREVER}, {A}, SHORT, {ALL: FOREVER}),
        ({ALL: SHORT}, {A}, LONG, {ALL: SHORT, A: LONG}),
        ({ALL: SHORT}, {A}, None, {ALL: SHORT, A: None}),
        ({ALL: SHORT, A: None}, {A}, SHORT, {ALL: SHORT}),
        ({ALL: SHORT, A: None}, None, LONG, {ALL: LONG}),
        ({ALL: SHORT, A: LONG, B: None}, None, None, {}),
    ],
)  # fmt: skip
def test_an_order_changes_the_states(
    before: PauseStates, keys: set[EngineKey] | None, order: Pause | None, after: PauseStates
) -> None:
    """An order replaces an earlier one about the same engines; a pause covered by a longer one is dropped."""
    assert kill_switch.changed(before, keys, order) == after


@pytest.mark.parametrize(
    ("before", "now", "after", "over"),
    [
        ({A: SHORT}, 9, {A: SHORT}, set()),
        ({A: SHORT}, 10, {}, {A}),
        ({A: FOREVER}, 1_000, {A: FOREVER}, set()),
        ({A: SHORT, FRONT: SHORT}, 10, {}, {A, FRONT}),
        ({A: SHORT, B: LONG, FRONT: LONG}, 10, {B: LONG}, {A}),
        ({ALL: SHORT, A: LONG}, 10, {A: LONG}, {ALL}),
        ({ALL: SHORT, A: LONG, B: LONG, FRONT: LONG}, 10, {A: LONG, B: LONG, FRONT: LONG}, {ALL}),
        ({ALL: SHORT, A: LONG, FRONT: LONG}, 10, {A: LONG}, {ALL}),
        ({ALL: SHORT, A: None}, 10, {}, {ALL}),
        ({ALL: SHORT}, -1_000, {ALL: SHORT}, set()),
    ],
)  # fmt: skip
def test_a_pause_ends_at_its_time(
    before: PauseStates, now: int, after: PauseStates, over: set[EngineKey]
) -> None:
    """At the end of its engine's pause a front end is active again, as after a resume."""
    assert kill_switch.ended(before, now, [A, B]) == (after, over)


@pytest.mark.parametrize(("now", "left"), [(5, 5), (10, 0), (15, 0), (-100, 9)])
def test_a_clock_that_is_set_back_prolongs_a_pause_by_its_time_to_live_at_most(now: int, left: int) -> None:
    """After a clock step back a pause has at most its time to live left."""
    assert SHORT.left_nano(now) == left
    assert FOREVER.left_nano(now) is None


def test_a_pause_is_stored_as_text() -> None:
    """The stored text has the key; the audit log's text does not."""
    assert kill_switch.read_pause(kill_switch.document(SHORT, A)) == (A, SHORT)
    assert "key" not in kill_switch.document(SHORT)


@pytest.mark.parametrize(("keys", "name"), [({ALL, A}, "all engines"), ({B, A, FRONT}, "engine s/0, s/1")])
def test_the_audit_log_names_the_engines(keys: set[EngineKey], name: str) -> None:
    """The audit log has engine names; a front end is listed by its engines."""
    assert kill_switch.engines_named(keys) == name
