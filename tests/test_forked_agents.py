"""The tests' agents and relays are forks, which start in a tenth of the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.agent.agent import running_agent
from tests.support.agent.relay import running_relay
from tests.support.forks.fork_server import Fork

if TYPE_CHECKING:
    import pytest


def test_vllm_in_this_process_does_not_prevent_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Configured for the CPU, vLLM sets LD_PRELOAD in this process's environment, at any time."""
    with running_agent() as before:
        monkeypatch.setenv("LD_PRELOAD", "libgomp.so.1")
        with running_agent() as agent, running_relay(agent.directory, f"--agents=one={agent.admin}") as relay:
            assert {type(each.process) for each in (before, agent, relay)} == {Fork}
