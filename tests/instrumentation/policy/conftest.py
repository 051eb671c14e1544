"""Fixtures of the policy tests: a runtime that has subscribed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.policy.pushes import FIELDS, count

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.instrumentation.runtime import Runtime

    from tests.support.agent.fake_agent import FakeAgent


@pytest.fixture
def subscribed(agent: FakeAgent, make_runtime: Callable[..., Runtime]) -> Runtime:
    """Make a runtime whose policy client has subscribed."""
    runtime = make_runtime(server="left", labels={"role": "decode"}, allow_faults=True)
    runtime.start_policy(FIELDS)
    agent.wait(lambda: count(agent, "subscribe"), "a subscription")
    return runtime
