"""A deadline ends a request that waits behind Mooncake over TCP; its blocks stay until Mooncake reports the end of the load."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import common_pb2 as c

from demo.common.agent import Agent
from demo.common.steps import PROMPT, until
from tests.support.agent.agent import short_directory
from tests.support.engine.bench import AgentBench, new_name
from tests.support.kv.extra_connectors import needs_extra_connectors
from tests.support.kv.mooncake_pair import Pair, running_pairs
from tests.support.kv.peers import signal_group, stopped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.common.client import Answer

pytestmark = [pytest.mark.engine, needs_extra_connectors]

# What decode waits without a deadline.
_READER_SECONDS = 40

_DEADLINE = "2s"


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
            with running_pairs(logs, agent.endpoint, reader_seconds=_READER_SECONDS) as (pair,):
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


def _prompt(name: str) -> str:
    return f"{name} {PROMPT * 6}"


def _check_failed(bench: Bench, name: str, answer: Answer) -> None:
    """See that a request got its answer at the deadline, and that its blocks stay."""
    peer = bench.pair.bootstrap
    assert answer.status == 503, answer.text
    message = answer.body["error"]["message"]
    assert all(part in message for part in ("mode timeout", "maxTransferWait 2 s", peer, "can be retried"))
    bench.event("request_closed", name)
    outcome = bench.event("load_outcome", name).load_outcome
    assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_FAILED, c.DECIDED_BY_DEADLINE)
    (failure,) = [event.transfer_failure for event in bench.events("transfer_failure", name)]
    assert (failure.mode, failure.peer.address) == (c.FAILURE_MODE_TIMEOUT, peer)
    (end,) = [event.deferral_end for event in bench.events("deferral_end", name)]
    assert end.ending == c.DEFERRAL_ENDING_TIMEOUT
    pin = bench.event("blocks_pinned", name).blocks_pinned
    assert (pin.peer.address, pin.released) == (peer, False)
    bench.wait_value(pin.blocks, "penstock_held_blocks", holder="pinned", peer=peer)


def test_a_stopped_prefill(mooncake: Bench) -> None:
    """The client gets its 503, others are served, and the blocks are free when prefill goes on."""
    pair, name = mooncake.pair, new_name("mc")
    prompt = _prompt(name)
    expected, params = pair.computed(prompt), pair.prefilled(prompt)
    mooncake.enforce(
        kvLoadFailure={"action": "fail"}, deferral={"maxTransferWait": _DEADLINE, "onTimeout": "fail"}
    )
    with ThreadPoolExecutor(1) as sender, stopped(pair.prefill):
        failed = sender.submit(pair.load, name, prompt, params).result()
        _check_failed(mooncake, name, failed)
        # Nothing is loaded for it: it is computed here, into other blocks.
        assert pair.load(new_name("mc"), prompt, {}).completion == expected
        assert mooncake.pinned() > 0

    released = mooncake.event("blocks_pinned", name, released=True).blocks_pinned
    assert released.peer.address == pair.bootstrap
    mooncake.wait_value(0, "penstock_held_blocks", holder="pinned", peer=pair.bootstrap)
    again = new_name("mc")
    assert pair.load(again, prompt, pair.prefilled(prompt)).completion == expected


def test_a_killed_prefill(mooncake: Bench) -> None:
    """Its sockets say nothing: the client has its answer long before vLLM, and the blocks stay until then. The pair is dead after it."""
    pair, name = mooncake.pair, new_name("mc")
    prompt = _prompt(name)
    params = pair.prefilled(prompt)
    mooncake.enforce(
        kvLoadFailure={"action": "fail"}, deferral={"maxTransferWait": _DEADLINE, "onTimeout": "fail"}
    )
    with ThreadPoolExecutor(1) as sender, stopped(pair.prefill):
        answer = sender.submit(pair.load, name, prompt, params)
        until(lambda: mooncake.events("deferral_start", name), "The request does not wait")
        signal_group(pair.prefill, signal.SIGKILL)
        _check_failed(mooncake, name, answer.result())
    assert "pinned" in mooncake.ctl("get", "holders")
    # What vLLM waits for in the end is a failure of a load that was given up.
    mooncake.event("blocks_pinned", name, released=True)
    mooncake.wait_value(0, "penstock_held_blocks", holder="pinned", peer=pair.bootstrap)
    assert len(mooncake.events("transfer_failure", name)) == 1
    assert len(mooncake.events("load_outcome", name)) == 1
