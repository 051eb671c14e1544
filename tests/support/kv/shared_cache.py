"""Engines that save what they compute to a cache outside and load it again: one with Penstock, one without."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from demo.common.agent import Agent
from demo.common.client import Answer, complete, fetch, post
from demo.common.metrics import Metrics
from demo.common.steps import until
from tests.support.agent.agent import short_directory
from tests.support.engine.bench import AgentBench

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.proto.v1.events_pb2 import TransferFailure

    from demo.servers import Server

TOKENS = 12


class ObservedBench(AgentBench):
    """An engine that has Penstock."""

    def __init__(self, agent: Agent, observed: Server) -> None:
        super().__init__(agent, observed.spec.name, labels={"role": "both"}, policy="cache-tests")
        self.observed = observed

    def failure(self, name: str) -> TransferFailure:
        """Return the one failure of a request that has been let go."""
        self.event("request_closed", name)
        (event,) = self.events("transfer_failure", name)
        return event.transfer_failure


class CacheBench(ObservedBench):
    """Two engines; the first has Penstock."""

    def __init__(self, agent: Agent, observed: Server, plain: Server) -> None:
        super().__init__(agent, observed)
        self.plain = plain


@contextmanager
def observed_bench(start: Callable[[str, str], Server]) -> Iterator[ObservedBench]:
    """Run an agent and one engine; *start* takes a name and an endpoint."""
    with short_directory() as directory:
        agent = Agent(directory, engines=1)
        servers: list[Server] = []
        try:
            agent.start()
            servers.append(start("observed", agent.endpoint))
            servers[0].wait_ready()
            bench = ObservedBench(agent, servers[0])
            yield bench
            bench.close()
        finally:
            for server in servers:
                server.stop()
            agent.stop()


@contextmanager
def running_bench(start: Callable[[str, str], Server]) -> Iterator[CacheBench]:
    """Run an agent and two engines; *start* takes a name and an endpoint, empty for no Penstock."""
    with short_directory() as directory:
        agent = Agent(directory, engines=1)
        servers: list[Server] = []
        try:
            agent.start()
            for name, endpoint in (("observed", agent.endpoint), ("plain", "")):
                servers.append(start(name, endpoint))
            for server in servers:
                server.wait_ready()
            bench = CacheBench(agent, *servers)
            yield bench
            bench.close()
        finally:
            for server in servers:
                server.stop()
            agent.stop()


def ask(server: Server, prompt: str, name: str = "") -> Answer:
    """Send a prompt; *name* is the client's for the request."""
    headers = {"X-Request-Id": name} if name else {}
    return complete(server.url, prompt, max_tokens=TOKENS, headers=headers, timeout=120.0)


def saved(server: Server, prompt: str) -> str:
    """Have a prompt computed and saved; then forget it in the engine. Return what came of it."""
    text = ask(server, prompt).completion

    def idle() -> bool:
        # A finished request keeps its blocks until they are saved.
        return Metrics.parse(fetch(f"{server.url}/metrics").text).value("vllm:kv_cache_usage_perc") == 0

    until(idle, f"{server.spec.name} does not save its blocks")
    forgotten = post(f"{server.url}/reset_prefix_cache")
    assert forgotten.status == 200, forgotten.text
    return text
