"""The deadlines of requests that wait for encoder outputs: what a poll changes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from penstock.instrumentation.vllm.ec import waits
from penstock.instrumentation.vllm.ec.waits import EcDeadlines, EcWait

from tests.support.engine.recorder import policy
from tests.support.manual_clock import ManualClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """Give the deadlines a clock that only the test moves."""
    clock = ManualClock()
    monkeypatch.setattr(waits, "time", SimpleNamespace(monotonic_ns=clock))
    return clock


def test_a_poll_changes_nothing(clock: ManualClock) -> None:
    """Only the first question is news, or one about another number of computed tokens; the clock runs from the first."""
    from penstock.rules import Deferral

    waits, request = EcDeadlines(), SimpleNamespace(request_id="r")
    waits.on_policy_change(policy(deferral=Deferral(max_start_wait=2.0)))
    assert waits.on_waiting(request, 0)
    clock.advance(1.5)
    assert not waits.on_waiting(request, 0)
    assert waits.on_waiting(request, 64)
    assert waits.waiting() == [EcWait(request, 64)]
    assert not waits.take_overdue()
    clock.advance(1.0)
    assert waits.take_overdue() == [EcWait(request, 64)]
    assert waits.on_waiting(request, 64)
    waits.on_ended("r")
    assert waits.on_waiting(request, 64)
