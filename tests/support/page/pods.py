"""Two agents with an engine each, and a relay over them that serves a page."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from tests.support.agent.agent import AgentProcess, short_directory
from tests.support.agent.batches import transfer_failure
from tests.support.agent.ingest_client import FakeEngine
from tests.support.agent.relay import RelayProcess, running_relay
from tests.support.page.addresses import relay_page_of

if TYPE_CHECKING:
    from contextlib import ExitStack

NAMES = ("decode-0", "decode-1")
"""Of the agents."""


class Pods:
    """Two agents with an engine each, and their relay with a page."""

    def __init__(self, parts: ExitStack, *flags: str) -> None:
        """Start them until *parts* ends; *flags* are more of the relay's."""
        self._directory = parts.enter_context(short_directory())
        self.agents = {name: AgentProcess(self._directory / name) for name in NAMES}
        for name, agent in self.agents.items():
            (self._directory / name).mkdir()
            parts.callback(agent.stop)
            agent.start()
        self.engines = {
            name: parts.enter_context(FakeEngine(agent.listen)) for name, agent in self.agents.items()
        }
        listed = ",".join(f"{name}={agent.admin}" for name, agent in self.agents.items())
        own = (f"--agents={listed}", "--deadline=1s", "--page=127.0.0.1:0", "--page-write=yes")
        self._flags = (*own, *flags)
        self.relay: RelayProcess = parts.enter_context(running_relay(self._directory, *self._flags))
        self.relay.wait_for(**dict.fromkeys(NAMES, "up"))
        self.page = relay_page_of(self.relay)

    def fail(self, name: str, *requests: str) -> None:
        """Let an engine fail."""
        self.engines[name].publish(*(transfer_failure(each, time_ns=time.time_ns()) for each in requests))

    def restart_relay(self) -> None:
        """End the relay with SIGKILL and start another, with a new page."""
        self.relay.stop(signal.SIGKILL)
        self.relay.start()
        self.relay.wait_for(**dict.fromkeys(NAMES, "up"))
        self.page = relay_page_of(self.relay)
