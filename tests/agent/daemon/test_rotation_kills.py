"""An order out of rotation, and a process that is killed: real agent processes, and the runtime of a front end."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from penstock.agent.ctl.main import cli
from penstock.instrumentation.core.rotation import LONGEST

from tests.support.agent.agent import running_agent, wait_until
from tests.support.agent.front_end import FrontEnd
from tests.support.agent.ingest_client import FakeEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.agent.agent import AgentProcess


@contextmanager
def server(agent: AgentProcess) -> Iterator[FrontEnd]:
    """Run a server with one engine, and yield its front end."""
    front_end = FrontEnd(agent)
    try:
        with FakeEngine(agent.listen):
            wait_until(lambda: agent.metric("penstock_server_out_of_rotation") == 0, "the front end reports")
            yield front_end
    finally:
        front_end.runtime.stop(5.0)


def ordered(agent: AgentProcess, *words: str) -> None:
    """Give an order and wait for no front end."""
    said = CliRunner(env={"AGENTCTL_ADDRESS": agent.admin}).invoke(cli, ["eject", *words, "--timeout", "1ms"])
    assert said.exit_code == 0 or "the order stands" in said.stderr, said.output


@pytest.mark.parametrize("killed", ["on-its-way", "in-force", "after-its-end"])
def test_the_agent_is_killed(killed: str) -> None:
    """What was ordered last holds after the restart; meanwhile the front end stays as it is, for a minute at most."""
    with running_agent([]) as agent, server(agent) as front_end:
        ordered(agent, "0", "--for", "10m")
        if killed != "on-its-way":
            wait_until(lambda: front_end.out, "it is out")
        if killed == "after-its-end":
            ordered(agent, "off")
        agent.kill()
        assert front_end.runtime.session.seconds_out_of_rotation <= LONGEST
        if killed == "in-force":
            assert front_end.out
        agent.start()
        out = killed != "after-its-end"
        wait_until(lambda: front_end.out == out, "the front end follows the last order")
        wait_until(lambda: agent.metric("penstock_server_out_of_rotation") == out, "the agent knows it")


def test_the_front_end_is_killed() -> None:
    """The next one is out from its greeting on; the end of the order reaches it."""
    with running_agent([]) as agent, server(agent) as first:
        ordered(agent, "0", "--for", "10m")
        wait_until(lambda: first.out, "it is out")
        first.runtime.stop(0.0)
        second = FrontEnd(agent)
        wait_until(lambda: second.out, "the next one is out")
        ordered(agent, "off")
        wait_until(lambda: not second.out, "it is back")
        second.runtime.stop(5.0)
