"""A deadline ends a request that waits behind Mooncake over TCP; its blocks stay until Mooncake reports the end of the load."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from demo.common.agent import Agent
from demo.common.steps import until
from tests.support.agent.agent import short_directory
from tests.support.engine.bench import AgentBench, new_name
from tests.support.kv.extra_connectors import needs_extra_connectors
from tests.support.kv.late_loads import (
    DEADLINE,
    SMALL_CACHE,
    Others,
    check_given_up,
    check_released,
    long_prompt,
    many,
)
from tests.support.kv.mooncake_pair import Pair, running_pairs
from tests.support.kv.peers import signal_group, stopped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.common.client import Answer

pytestmark = [pytest.mark.engine, needs_extra_connectors]

# What decode waits without a deadline, and how long prefill keeps the blocks for it.
_READER_SECONDS, _LEASE_SECONDS = 60, 300


class Bench(AgentBench):
    """A pair with Penstock."""

    def __init__(self, agent: Agent, pair: Pair) -> None:
        super().__init__(agent, "decode", labels={"role": "decode"}, policy="deadline-tests")
        self.pair = pair

    def pinned(self) -> float:
        """Return the blocks that are pinned because of the peer."""
        return self.value("penstock_held_blocks", holder="pinned", peer=self.pair.bootstrap)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Run the agent and a pair whose decode waits for long."""
    logs = tmp_path_factory.mktemp("mooncake-deadlines")
    with short_directory() as directory:
        agent = Agent(directory)
        try:
            agent.start()
            with running_pairs(
                logs,
                agent.endpoint,
                reader_seconds=_READER_SECONDS,
                lease_seconds=_LEASE_SECONDS,
                args=SMALL_CACHE,
            ) as (pair,):
                bench = Bench(agent, pair)
                yield bench
                bench.close()
        finally:
            agent.stop()


@pytest.fixture
def mooncake(served: Bench) -> Iterator[Bench]:
    """Begin and end without a policy, and see that our code raised nothing."""
    served.forget()
    yield served
    served.forget()
    assert not served.guard_errors()


def _check_failed(bench: Bench, name: str, answer: Answer) -> None:
    """See that a request got its answer at the deadline, and that its blocks stay."""
    assert bench.pair.bootstrap in answer.body["error"]["message"]
    assert check_given_up(bench, name, answer).peer.address == bench.pair.bootstrap


def test_a_stopped_prefill(mooncake: Bench) -> None:
    """The client gets its 503; others use all other blocks, also while prefill goes on and writes; then the same text loads."""
    pair, name = mooncake.pair, new_name("mc")
    prompt = long_prompt(name)
    others = Others(pair.decode, prompts=many(1200, 6))
    texts = others.ask(server=pair.prefill)
    expected, params = pair.computed(prompt), pair.prefilled(prompt)
    mooncake.enforce(
        kvLoadFailure={"action": "fail"}, deferral={"maxTransferWait": DEADLINE, "onTimeout": "fail"}
    )
    with ThreadPoolExecutor(1) as sender, stopped(pair.prefill):
        failed = sender.submit(pair.load, name, prompt, params).result()
        _check_failed(mooncake, name, failed)
        # Nothing is loaded for it: it is computed here, into other blocks.
        assert pair.load(new_name("mc"), prompt, {}).completion == expected
        assert mooncake.pinned() > 0
        others.check(texts, lambda: signal_group(pair.prefill, signal.SIGCONT))

    check_released(mooncake, pair.decode, name)
    again = new_name("mc")
    assert pair.load(again, prompt, pair.prefilled(prompt)).completion == expected


def test_a_killed_prefill(mooncake: Bench) -> None:
    """Its sockets say nothing: the client has its answer long before vLLM, and the blocks stay until then. The pair is dead after it."""
    pair, name = mooncake.pair, new_name("mc")
    prompt = long_prompt(name)
    params = pair.prefilled(prompt)
    mooncake.enforce(
        kvLoadFailure={"action": "fail"}, deferral={"maxTransferWait": DEADLINE, "onTimeout": "fail"}
    )
    with ThreadPoolExecutor(1) as sender, stopped(pair.prefill):
        answer = sender.submit(pair.load, name, prompt, params)
        until(lambda: mooncake.events("deferral_start", name), "The request does not wait")
        signal_group(pair.prefill, signal.SIGKILL)
        _check_failed(mooncake, name, answer.result())
    assert "pinned" in mooncake.ctl("get", "holders")
    # What vLLM waits for in the end is a failure of a load that was given up.
    check_released(mooncake, pair.decode, name)
