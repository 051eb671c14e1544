"""Real engines behind a router: a prefill server, two decode servers, their agent, and clients that ask the router all the time."""

from __future__ import annotations

import itertools
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from demo.common.agent import Agent
from demo.common.client import fetch
from demo.common.metrics import Metrics
from demo.common.model import tiny_model
from demo.common.steps import PROMPT, until
from demo.servers import ROOT, Server, ServerSpec
from tests.support.agent.agent import short_directory
from tests.support.engine.bench import wait_known
from tests.support.engine.pairs import penstock_env

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from demo.common.agent import CommandResult
    from tests.support.routers.routers import Router

DECODES = ("one", "two")

_CLIENTS = 2
# In a row. Routers take turns: each server in rotation has some of them.
_MANY = 20
# No two prompts have a block in common, which would be in the cache of a server.
_numbers = itertools.count()


class Engines:
    """Running servers by their names, ``prefill`` and those of ``DECODES``.

    Attributes:
        urls: the API of each.

    """

    def __init__(self, agent: Agent, servers: Mapping[str, Server]) -> None:
        self._agent = agent
        self.urls = {name: server.url for name, server in servers.items()}

    def eject(self, *arguments: str) -> CommandResult:
        """Run ``agentctl eject`` with these."""
        return self._agent.ctl("eject", *arguments, "--timeout", "60s")

    def read(self, name: str) -> float:
        """Return how many times a decode server has read KV, as the agent counts it."""
        return self._agent.metrics().value("penstock_transfers_total", server=name, result="ok")

    def served(self) -> dict[str, float]:
        """Return how many requests each has answered, as vLLM counts them."""
        return {
            name: Metrics.parse(fetch(f"{url}/metrics").text).value("vllm:request_success_total")
            for name, url in self.urls.items()
        }


@contextmanager
def running_engines(logs: Path) -> Iterator[Engines]:
    """Run them as ``vllm serve`` does until the end of the block."""
    model = tiny_model(ROOT / ".cache" / "models")
    with short_directory() as directory, ExitStack() as ends:
        agent = Agent(directory, engines=1 + len(DECODES))
        agent.start()
        ends.callback(agent.stop)
        servers: dict[str, Server] = {}
        for name, role, kv_role in (
            ("prefill", "prefill", "kv_producer"),
            *((name, "decode", "kv_consumer") for name in DECODES),
        ):
            env = penstock_env({"PENSTOCK_ENDPOINT": agent.endpoint}, name)
            spec = ServerSpec(name, kv_role, env={**env, "PENSTOCK_LABELS": f"role={role}"})
            servers[name] = Server(spec, model=model, logs=logs)
            ends.callback(servers[name].stop)
        for server in servers.values():
            server.wait_ready()
        for name in servers:
            wait_known(agent, name)
        yield Engines(agent, servers)


class Stream:
    """Requests to a router, by a few clients of which each sends the next one once it has an answer.

    Attributes:
        answers: the text for each prompt so far.
        failures: what was wrong with each answer that was not 200, and why there was none.

    """

    def __init__(self, engines: Engines, router: Router) -> None:
        self.answers: dict[str, str] = {}
        self.failures: list[str] = []
        self._engines = engines
        self._router = router
        self._ending = threading.Event()
        self._clients = [threading.Thread(target=self._ask) for _ in range(_CLIENTS)]

    @contextmanager
    def running(self) -> Iterator[Stream]:
        """Send them until the end of the block."""
        for client in self._clients:
            client.start()
        try:
            yield self
        finally:
            self._ending.set()
            for client in self._clients:
                client.join()

    def uses(self, *names: str) -> None:
        """Wait until the servers of these names, and no others, answer many requests in a row, and see it once more."""
        used: set[str] = set()

        def look() -> bool:
            nonlocal used
            assert self.failures == []
            before, sent = self._engines.served(), len(self.answers)
            until(lambda: self.failures or len(self.answers) >= sent + _MANY, "the clients get no answers")
            after = self._engines.served()
            used = {name for name in after if after[name] > before[name]}
            return used == set(names)

        until(look, lambda: f"the router uses {used}, not {set(names)}")
        assert look(), used

    def _ask(self) -> None:
        while not self._ending.is_set():
            prompt = f"{next(_numbers)} {PROMPT * 3}"
            try:
                self.answers[prompt] = self._router.ask(prompt).completion
            except (OSError, ValueError) as error:
                self.failures.append(repr(error))
