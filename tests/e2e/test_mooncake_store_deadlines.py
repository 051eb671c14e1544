"""A deadline ends a request that waits for a Mooncake store, and one whose look-up waits for its master."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from demo.common.agent import Agent
from tests.support.agent.agent import short_directory
from tests.support.engine.bench import AgentBench, new_name
from tests.support.kv.extra_connectors import needs_extra_connectors
from tests.support.kv.late_loads import (
    DEADLINE,
    SMALL_CACHE,
    check_given_up,
    check_put_off,
    check_released,
    long_prompt,
)
from tests.support.kv.mooncake_store import Store, running_store
from tests.support.kv.shared_cache import ask, saved
from tests.support.stop import stop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.common.processes import Child
    from demo.servers import Server

pytestmark = [pytest.mark.engine, needs_extra_connectors]


class Bench(AgentBench):
    """An engine with Penstock and its store."""

    def __init__(self, agent: Agent, engine: Server, store: Store) -> None:
        super().__init__(agent, engine.spec.name, labels={"role": "both"}, policy="store-deadlines")
        self.engine = engine
        self.store = store

    def set_deadlines(self) -> None:
        """Let loads and look-ups fail after two seconds."""
        deferral = {"maxTransferWait": DEADLINE, "maxStartWait": DEADLINE, "onTimeout": "fail"}
        self.enforce(kvLoadFailure={"action": "fail"}, deferral=deferral)


@contextmanager
def _stopped(child: Child) -> Iterator[None]:
    """SIGSTOP a process; SIGCONT at the end."""
    try:
        stop(child.pid)
        yield
    finally:
        child.signal(signal.SIGCONT)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Run agent, store and engine."""
    logs = tmp_path_factory.mktemp("store-deadlines")
    with short_directory() as directory, running_store(logs) as store:
        agent = Agent(directory, engines=1)
        engine = None
        try:
            agent.start()
            # Else a look-up is made on the scheduler's thread.
            engine = store.engine(
                "observed", logs=logs, endpoint=agent.endpoint, args=SMALL_CACHE, lookup_async=True
            )
            engine.wait_ready()
            bench = Bench(agent, engine, store)
            yield bench
            bench.close()
        finally:
            if engine is not None:
                engine.stop()
            agent.stop()


@pytest.fixture
def mooncake(served: Bench) -> Iterator[Bench]:
    """Begin and end without a policy, and see that our code raised nothing."""
    served.forget()
    yield served
    served.forget()
    assert not served.guard_errors()


def test_the_owner_is_stopped(mooncake: Bench) -> None:
    """The master still names it: the client has its 503 at the deadline, and the blocks are free when the owner goes on."""
    name = new_name("store")
    prompt = long_prompt(name)
    expected = saved(mooncake.engine, prompt)
    mooncake.set_deadlines()
    with _stopped(mooncake.store.owner):
        check_given_up(mooncake, name, ask(mooncake.engine, prompt, name))
    check_released(mooncake, mooncake.engine, name)
    mooncake.forget()
    assert ask(mooncake.engine, prompt).completion == expected


def test_a_look_up_while_the_master_is_stopped(mooncake: Bench) -> None:
    """It is put off, and fails at its deadline; once the master goes on the same text is served."""
    name = new_name("store")
    prompt = long_prompt(name)
    expected = saved(mooncake.engine, prompt)
    mooncake.set_deadlines()
    with _stopped(mooncake.store.master):
        check_put_off(mooncake, name, ask(mooncake.engine, prompt, name))
    mooncake.forget()
    assert ask(mooncake.engine, prompt).completion == expected


def test_the_master_and_the_owner_are_gone_while_a_load_waits(mooncake: Bench) -> None:
    """What Mooncake says of the load in the end frees its blocks. There is no store after this test."""
    name = new_name("store")
    prompt = long_prompt(name)
    expected = saved(mooncake.engine, prompt)
    mooncake.set_deadlines()
    with ThreadPoolExecutor(1) as sender, _stopped(mooncake.store.owner):
        answer = sender.submit(ask, mooncake.engine, prompt, name)
        mooncake.event("deferral_start", name)
        mooncake.store.master.kill()
        check_given_up(mooncake, name, answer.result())
        mooncake.store.owner.kill()
    check_released(mooncake, mooncake.engine, name)
    assert expected
