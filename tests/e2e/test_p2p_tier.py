"""Two real engines whose P2P tiers move KV over NIXL and ZMQ: promotions, a source that is stopped, one that is killed."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import common_pb2 as c
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_OPEN

from demo.common.agent import Agent
from demo.common.steps import PROMPT, until
from tests.support.agent.agent import short_directory
from tests.support.engine.bench import AgentBench, new_name
from tests.support.kv.p2p_pair import TOKEN_BYTES, Pair, running_pair
from tests.support.kv.peers import signal_group, stopped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.common.client import Answer

pytestmark = pytest.mark.engine

_DEADLINE = "2s"


class Bench(AgentBench):
    """The reader of a pair."""

    def __init__(self, agent: Agent, pair: Pair) -> None:
        super().__init__(agent, "reader", labels={"tier": "reader"}, policy="p2p-tests")
        self.pair = pair

    def check_failure(self, name: str, mode: int, error_type: int) -> int:
        """See that a request has one failure, of the source; return its blocks."""
        self.event("request_closed", name)
        (failure,) = [event.transfer_failure for event in self.events("transfer_failure", name)]
        assert (failure.mode, failure.error_type) == (mode, error_type)
        assert failure.peer.address == self.pair.peer
        assert failure.connector == "OffloadingConnector"
        return int(failure.blocks)

    def check_outcome(self, name: str, outcome: int, decided_by: int) -> None:
        """See that a request has one outcome, with the source."""
        (found,) = [event.load_outcome for event in self.events("load_outcome", name)]
        assert (found.outcome, found.decided_by) == (outcome, decided_by)
        assert found.peer.address == self.pair.peer

    def check_peers(self) -> None:
        """See that the source alone has failed."""
        failed = {
            sample.labels["peer"]
            for sample in self.agent.metrics().select("penstock_transfer_failures_total", server="reader")
            if sample.value
        }
        assert failed == {self.pair.peer}
        assert self.pair.peer in self.ctl("get", "peers")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Run the agent and both engines."""
    logs = tmp_path_factory.mktemp("p2p")
    with short_directory() as directory:
        agent = Agent(directory)
        try:
            agent.start()
            with running_pair(logs, agent.endpoint) as pair:
                bench = Bench(agent, pair)
                yield bench
                bench.close()
        finally:
            agent.stop()


@pytest.fixture
def tier(served: Bench) -> Iterator[Bench]:
    """Begin and end without a policy, and see that our code raised nothing."""
    served.forget()
    yield served
    served.forget()
    assert not served.guard_errors()


def _prompt(name: str) -> str:
    return f"{name} {PROMPT * 4}"


def _check_loaded(tier: Bench) -> str:
    """See that a prompt that the source has is loaded from there and answered as there; return the request's name.

    There is a session then.
    """
    name = new_name("p2p")
    expected = tier.pair.computed(_prompt(name))
    answer = tier.pair.load(name, _prompt(name), tier.pair.asked())
    assert answer.completion == expected
    closed = tier.event("request_closed", name).request_closed
    assert closed.external_cached_tokens > 0
    assert closed.peer.address == tier.pair.peer
    return name


def _check_deadline(tier: Bench, answer: Answer, wait: str) -> None:
    assert answer.status == 503, answer.text
    message = answer.body["error"]["message"]
    assert f"mode timeout, deferral.{wait} 2 s, peer {tier.pair.peer}" in message
    assert "can be retried" in message


def test_a_promotion(tier: Bench) -> None:
    """Of each request that is loaded: connector, peer, bytes and time, in metrics, trace and sentences; prefilled ones, too."""
    labels = {
        "connector": "OffloadingConnector",
        "direction": "receive",
        "result": "ok",
        "peer": tier.pair.peer,
    }
    before = tier.value("penstock_transfers_total", **labels)
    name = _check_loaded(tier)
    until(lambda: tier.value("penstock_transfers_total", **labels) > before, "No promotion is told")
    span = tier.span_of(name, "kv.load")
    assert span.attributes["penstock.peer"] == tier.pair.peer
    assert span.attributes["penstock.connector"] == "OffloadingConnector"
    # What comes from the source is copied from here to the engine's blocks, and is the same KV.
    closed = tier.event("request_closed", name).request_closed
    assert int(span.attributes["penstock.bytes"]) == closed.external_cached_tokens * TOKEN_BYTES
    assert span.end_time_unix_nano > span.start_time_unix_nano
    assert f"from {tier.pair.peer} in" in tier.ctl("explain", name)
    assert tier.pair.peer in tier.ctl("get", "peers")
    assert "kv.load" in tier.ctl("trace", name)
    assert not tier.events("transfer_failure", name)

    prefilled = new_name("p2p")
    expected = tier.pair.computed(_prompt(prefilled))
    params = tier.pair.prefilled(_prompt(prefilled))
    assert tier.pair.load(prefilled, _prompt(prefilled), params).completion == expected
    assert tier.event("request_closed", prefilled).request_closed.external_cached_tokens > 0
    until(lambda: tier.value("penstock_transfers_total", **labels) > before + 1, "The second is not told")


def test_a_stopped_source(tier: Bench) -> None:
    """Deadlines end a look-up and a promotion that it owes; the prompts are right here meanwhile, and from it when it goes on."""
    pair = tier.pair
    _check_loaded(tier)
    names = [new_name("p2p"), new_name("p2p")]
    expected = [pair.computed(_prompt(name)) for name in names]
    params = [pair.asked(), pair.prefilled(_prompt(names[1]))]
    tier.enforce(
        deferral={"maxStartWait": _DEADLINE, "maxTransferWait": _DEADLINE, "onTimeout": "fail"},
    )
    with stopped(pair.source), ThreadPoolExecutor(2) as sender:
        sent = [
            sender.submit(pair.load, name, _prompt(name), each)
            for name, each in zip(names, params, strict=True)
        ]
        for each, wait in zip(sent, ("maxStartWait", "maxTransferWait"), strict=True):
            _check_deadline(tier, each.result(), wait)
    for name, has_blocks in zip(names, (False, True), strict=True):
        blocks = tier.check_failure(name, c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT)
        assert (blocks > 0) is has_blocks
        tier.check_outcome(name, c.OUTCOME_FAILED, c.DECIDED_BY_DEADLINE)
    tier.check_peers()
    tier.forget()
    _check_loaded(tier)
    for name, text in zip(names, expected, strict=True):
        again = new_name("p2p")
        assert pair.load(again, _prompt(name), pair.asked()).completion == text


def test_a_killed_source(tier: Bench) -> None:
    """The session ends with it: the prompt is computed here, the source is the peer that failed, and the only one kept away from."""
    _check_loaded(tier)
    pair, names = tier.pair, [new_name("p2p"), new_name("p2p")]
    expected = [pair.computed(_prompt(name)) for name in names]
    params = pair.prefilled(_prompt(names[0]))
    rules = {"failures": 1, "window": "60s", "duration": "10m", "maxPeersPercent": 100}
    tier.enforce(kvLoadFailure={"action": "recompute"}, peerQuarantine=rules)
    with ThreadPoolExecutor(1) as sender, stopped(pair.source):
        sent = sender.submit(pair.load, names[0], _prompt(names[0]), params)
        until(lambda: tier.events("deferral_start", names[0]), "The request does not wait")
        signal_group(pair.source, signal.SIGKILL)
        assert sent.result().completion == expected[0]
    assert tier.check_failure(names[0], c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_REMOTE_RESET)
    tier.check_outcome(names[0], c.OUTCOME_RECOMPUTED, c.DECIDED_BY_POLICY)
    (changed,) = [event.quarantine_changed for event in tier.events("quarantine_changed")]
    assert (changed.peer.address, changed.state) == (pair.peer, QUARANTINE_STATE_OPEN)
    assert pair.load(names[1], _prompt(names[1]), pair.asked()).completion == expected[1]
    tier.event("request_closed", names[1])
    tier.check_outcome(names[1], c.OUTCOME_RECOMPUTED, c.DECIDED_BY_QUARANTINE)
    assert not tier.events("transfer_failure", names[1])
    tier.check_peers()
