"""The engine comes first: whatever happens to the agent, vLLM serves, and nothing is counted twice."""

from __future__ import annotations

import itertools
import signal
import uuid
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TYPE_CHECKING

import pytest

from demo.common.client import prefill_decode
from demo.common.steps import PROMPT, until
from tests.support.engine.pairs import CPU_DEFAULTS
from tests.support.stop import stop

if TYPE_CHECKING:
    from demo.stack import Stack

pytestmark = [
    pytest.mark.engine,
    pytest.mark.parametrize("stack", [CPU_DEFAULTS], indirect=True, ids=["cpu"]),
]

_BURST = 6
_ROUNDS = [0, *(pytest.param(number, marks=pytest.mark.long) for number in (1, 2))]


def _burst(stack: Stack) -> list[str]:
    """Send a few requests through both servers, two at a time; return the answers that are not as they should be."""

    def send(_: int) -> str:
        prompt = PROMPT * 2 + uuid.uuid4().hex
        answer = prefill_decode(stack.prefill.url, stack.decode.url, prompt, max_tokens=4)[1]
        return "" if answer.status == HTTPStatus.OK else f"{answer.status}: {answer.text}"

    with ThreadPoolExecutor(2) as senders:
        return list(filter(None, senders.map(send, range(_BURST))))


def _transfers(stack: Stack) -> float:
    return stack.agent.metrics().value("penstock_transfers_total", server="decode", result="ok")


def _closed(stack: Stack) -> float:
    return stack.agent.metrics().value("penstock_events_total", server="decode", kind="request_closed")


def _paused(stack: Stack) -> float:
    return stack.agent.metrics().value("penstock_engine_paused", server="decode")


def _all_connected(stack: Stack) -> bool:
    """Whether the agent is connected to all processes of both engines, some time after its start."""
    connected = {
        (engine["key"]["server"], source["hello"]["process"])
        for engine in stack.agent.ctl_json("get", "engines")["engines"]
        for source in engine["sources"]
        if source.get("connected")
    }
    return connected >= set(itertools.product(("prefill", "decode"), ("engine-core", "worker")))


def _count_reaches(stack: Stack, transfers: float, closed: float) -> None:
    """Wait for exactly so many transfers and requests, and see that no further ones follow."""
    until(
        lambda: _transfers(stack) >= transfers and _closed(stack) >= closed,
        f"Not {transfers:g} transfers and {closed:g} requests are counted",
        seconds=120,
    )
    assert (_transfers(stack), _closed(stack)) == (transfers, closed)


def test_a_stopped_agent_costs_nothing(stack: Stack) -> None:
    """SIGSTOP: the engines answer as before; after SIGCONT all of it is counted once."""
    transfers, closed = _transfers(stack), _closed(stack)

    stop(stack.agent.child.pid)
    try:
        failed = _burst(stack)
    finally:
        stack.agent.child.signal(signal.SIGCONT)

    assert failed == []
    _count_reaches(stack, transfers + _BURST, closed + _BURST)


def test_an_agent_that_goes_and_comes_back_counts_all_of_it(stack: Stack) -> None:
    """SIGTERM, traffic without an agent, a new agent on the same state."""
    transfers, closed = _transfers(stack), _closed(stack)

    stack.agent.stop()
    try:
        failed = _burst(stack)
    finally:
        stack.agent.start()

    assert failed == []
    _count_reaches(stack, transfers + _BURST, closed + _BURST)


@pytest.mark.parametrize("round_", _ROUNDS)
def test_kill_9_amid_traffic_counts_everything_exactly_once(stack: Stack, round_: int) -> None:
    """The agent is killed while requests run and comes back: no transfer is lost or doubled."""
    transfers, closed = _transfers(stack), _closed(stack)

    with ThreadPoolExecutor(1) as background:
        traffic = background.submit(_burst, stack)
        until(lambda: _closed(stack) > closed, "No traffic arrives")
        stack.agent.kill()
        stack.agent.start()
        assert traffic.result() == []

    _count_reaches(stack, transfers + _BURST, closed + _BURST)
    assert stack.agent.metrics().value("penstock_events_dropped_total") == 0


def test_pause_is_a_kill_switch_on_the_running_engine(stack: Stack) -> None:
    """Paused engines serve and report nothing; resumed ones report again.

    Either command ends once every process of each engine follows it, and what was recorded before a pause is counted.
    """
    # A process that is away is not waited for: the agent has been started anew a moment ago.
    until(lambda: _all_connected(stack), "Not all processes of the engines come back to the agent")
    try:
        paused = stack.agent.ctl("pause", "--reason", "test", "--timeout", "120s")
        assert paused.code == 0, paused.output
        assert _paused(stack) == 1
        transfers = _transfers(stack)
        assert _burst(stack) == []
        assert _transfers(stack) == transfers
    finally:
        resumed = stack.agent.ctl("resume", "--timeout", "120s")

    assert resumed.code == 0, resumed.output
    assert _paused(stack) == 0
    assert _burst(stack) == []
    until(lambda: _transfers(stack) == transfers + _BURST, "Transfers after resume are not counted")
