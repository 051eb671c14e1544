"""A deadline ends a request that waits for an LMCache server which writes into the engine's blocks; they stay until it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from demo.common.agent import Agent
from tests.support.agent.agent import short_directory
from tests.support.engine.bench import AgentBench, new_name
from tests.support.kv.extra_connectors import needs_extra_connectors
from tests.support.kv.late_loads import (
    DEADLINE,
    SMALL_CACHE,
    Others,
    check_given_up,
    check_put_off,
    check_released,
    long_prompt,
    many,
)
from tests.support.kv.lmcache import CacheServer
from tests.support.kv.shared_cache import ask, saved

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.servers import Server

pytestmark = [pytest.mark.engine, needs_extra_connectors]

# LMCache's own time-out is far behind the deadlines.
_ANSWER_SECONDS = 300.0


class Bench(AgentBench):
    """An engine with Penstock and its LMCache server."""

    def __init__(self, agent: Agent, engine: Server, cache: CacheServer) -> None:
        super().__init__(agent, engine.spec.name, labels={"role": "both"}, policy="lmcache-deadlines")
        self.engine = engine
        self.cache = cache

    def set_deadlines(self) -> None:
        """Let loads and look-ups fail after two seconds."""
        deferral = {"maxTransferWait": DEADLINE, "maxStartWait": DEADLINE, "onTimeout": "fail"}
        self.enforce(kvLoadFailure={"action": "fail"}, deferral=deferral)

    def check_loads(self, prompt: str, expected: str) -> None:
        """See that a text loads now, and what comes of it."""
        name = new_name("again")
        assert ask(self.engine, prompt, name).completion == expected
        assert self.event("request_closed", name).request_closed.external_cached_tokens > 0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Run agent, LMCache server and engine."""
    logs = tmp_path_factory.mktemp("lmcache-deadlines")
    with short_directory() as directory:
        agent = Agent(directory, engines=1)
        cache = CacheServer(logs, "writes", writes=True, answer_seconds=_ANSWER_SECONDS)
        engine = None
        try:
            agent.start()
            cache.wait_ready()
            engine = cache.engine("observed", logs=logs, endpoint=agent.endpoint, args=SMALL_CACHE)
            engine.wait_ready()
            bench = Bench(agent, engine, cache)
            yield bench
            bench.close()
        finally:
            if engine is not None:
                engine.stop()
            cache.stop()
            agent.stop()


@pytest.fixture
def lmcache(served: Bench) -> Iterator[Bench]:
    """Begin and end without a policy, and see that our code raised nothing."""
    served.forget()
    yield served
    served.forget()
    assert not served.guard_errors()


def test_the_server_is_stopped_between_look_up_and_load(lmcache: Bench) -> None:
    """The client has its 503 at the deadline; the blocks are free when the server goes on and has written; the text loads again."""
    name = new_name("lmcache")
    prompt = long_prompt(name)
    expected = saved(lmcache.engine, prompt)
    lmcache.set_deadlines()
    with lmcache.cache.stopped_at_next_load():
        check_given_up(lmcache, name, ask(lmcache.engine, prompt, name))
    check_released(lmcache, lmcache.engine, name)
    lmcache.check_loads(prompt, expected)


def test_a_look_up_while_the_server_is_stopped(lmcache: Bench) -> None:
    """It is put off, and fails at its deadline; once the server goes on the same text loads."""
    name = new_name("lmcache")
    prompt = long_prompt(name)
    expected = saved(lmcache.engine, prompt)
    lmcache.set_deadlines()
    with lmcache.cache.stopped():
        check_put_off(lmcache, name, ask(lmcache.engine, prompt, name))
    lmcache.check_loads(prompt, expected)


def test_others_need_the_blocks(lmcache: Bench) -> None:
    """They get all others, and their answers are right, also while the server writes late."""
    # Shorter than what LMCache saves: a save would wait behind the load, and keep its blocks.
    others = Others(lmcache.engine, prompts=many(240, 14))
    texts = others.ask()
    name = new_name("lmcache")
    prompt = long_prompt(name)
    expected = saved(lmcache.engine, prompt)
    lmcache.set_deadlines()
    with lmcache.cache.next_load_held() as let_go:
        check_given_up(lmcache, name, ask(lmcache.engine, prompt, name))
        others.check(texts, let_go)
    check_released(lmcache, lmcache.engine, name)
    lmcache.check_loads(prompt, expected)


def test_the_server_is_killed_between_look_up_and_load(lmcache: Bench) -> None:
    """The deadline is long before LMCache's look whether the server lives, which ends the load. There is no server after this test."""
    name = new_name("lmcache")
    prompt = long_prompt(name)
    expected = saved(lmcache.engine, prompt)
    lmcache.set_deadlines()
    lmcache.cache.kill_at_next_load()
    check_given_up(lmcache, name, ask(lmcache.engine, prompt, name))
    check_released(lmcache, lmcache.engine, name)
    lmcache.forget()
    assert ask(lmcache.engine, prompt).completion == expected
