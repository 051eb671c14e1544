"""An agent that is shared by the tests that only look at it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.agent.agent import AgentProcess, running_agent

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def agent() -> Iterator[AgentProcess]:
    """Run one agent for the module."""
    with running_agent(["--engines-expected=2"]) as agent:
        yield agent
