"""vLLM's MooncakeConnector moves KV blocks between two servers over TCP."""

from __future__ import annotations

import re
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import common_pb2 as c
from penstock.proto.v1.events_pb2 import LEASE_ENDING_EXPIRED

from demo.common.agent import Agent
from demo.common.processes import free_port
from demo.common.steps import PROMPT, until
from demo.servers import LOOPBACK
from tests.support.agent.agent import short_directory
from tests.support.engine.bench import AgentBench, new_name
from tests.support.kv.extra_connectors import needs_extra_connectors, vllm_counters
from tests.support.kv.mooncake_pair import Pair, running_pairs
from tests.support.kv.peers import signal_group, stopped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.proto.v1.events_pb2 import Event, TransferFailure

pytestmark = [pytest.mark.engine, needs_extra_connectors]

CONNECTOR = "MooncakeConnector"


class Bench(AgentBench):
    """A pair with Penstock, and one without."""

    def __init__(self, agent: Agent, observed: Pair, plain: Pair) -> None:
        super().__init__(agent, "decode", labels={"role": "decode"}, policy="mooncake-tests")
        self.observed = observed
        self.plain = plain

    def failure(self, name: str) -> TransferFailure:
        """Return the one failure of a request that has been let go."""
        self.event("request_closed", name)
        (event,) = self.events("transfer_failure", name)
        return event.transfer_failure


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Run the agent and both pairs."""
    logs = tmp_path_factory.mktemp("mooncake")
    with short_directory() as directory:
        agent = Agent(directory)
        try:
            agent.start()
            with running_pairs(logs, agent.endpoint, "") as (observed, plain):
                bench = Bench(agent, observed, plain)
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


def test_everything_is_the_same_without_penstock(mooncake: Bench) -> None:
    """Texts and vLLM's own counters; what is loaded is what was computed."""
    counted = []
    texts = []
    for pair in (mooncake.observed, mooncake.plain):
        prompts = [_prompt(f"request {number}") for number in range(4)]
        texts.append([pair.load(new_name("mc"), each, pair.prefilled(each)).completion for each in prompts])
        assert texts[-1] == [pair.computed(each) for each in prompts]
        counted.append((vllm_counters(pair.prefill), vllm_counters(pair.decode)))

    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1
    assert counted[0] == counted[1]
    loaded = [value for name, value in counted[0][1].items() if "external_kv_transfer" in name]
    assert loaded
    assert min(loaded) > 0


def test_a_load_and_its_send_are_told(mooncake: Bench) -> None:
    """Connector, peer, tokens and request on decode; the send on prefill."""
    pair, name = mooncake.observed, new_name("mc")
    received = {
        "connector": CONNECTOR,
        "channel": "kv",
        "direction": "receive",
        "result": "ok",
        "peer": pair.bootstrap,
    }
    earlier = new_name("mc")
    pair.load(earlier, _prompt(earlier), pair.prefilled(_prompt(earlier)))
    before = mooncake.value_after(earlier, "penstock_transfers_total", **received)
    answer = pair.load(name, _prompt(name), pair.prefilled(_prompt(name)))

    assert answer.completion == pair.computed(_prompt(name))
    closed = mooncake.event("request_closed", name).request_closed
    assert closed.external_cached_tokens == answer.body["usage"]["prompt_tokens"]
    assert closed.peer.address == pair.bootstrap
    assert closed.peer.engine_id == pair.engine_id
    mooncake.wait_value(before + 1, "penstock_transfers_total", **received)
    sent = {"server": "prefill", "connector": CONNECTOR, "direction": "send", "result": "ok"}
    until(lambda: mooncake.value("penstock_transfers_total", **sent) > 0, "prefill's sends are not told")
    span = mooncake.span_of(name, "kv.load")
    assert span.attributes["penstock.peer"] == pair.bootstrap
    assert not mooncake.events("transfer_failure", name)


def test_a_prefill_server_that_is_gone(mooncake: Bench) -> None:
    """Its bootstrap address refuses: vLLM's configuration fails the request, a policy has it recomputed."""
    pair, gone = mooncake.observed, f"{LOOPBACK}:{free_port()}"
    names = [new_name("mc"), new_name("mc")]
    lost = {"remote_engine_id": "never-met", "remote_bootstrap_addr": f"http://{gone}"}
    first = pair.load(names[0], _prompt(names[0]), {**pair.prefilled(_prompt(names[0])), **lost})
    mooncake.enforce(kvLoadFailure={"action": "recompute"})
    second = pair.load(names[1], _prompt(names[1]), {**pair.prefilled(_prompt(names[1])), **lost})

    assert first.status >= 500
    assert second.completion == pair.computed(_prompt(names[1]))
    for name, outcome in zip(names, (c.OUTCOME_FAILED, c.OUTCOME_RECOMPUTED), strict=True):
        failure = mooncake.failure(name)
        assert (failure.connector, failure.channel) == (CONNECTOR, c.CHANNEL_KV)
        assert failure.peer.address == gone
        assert failure.mode == c.FAILURE_MODE_HANDSHAKE
        assert "not found from bootstrap" in failure.error_text
        assert failure.blocks > 0
        (event,) = mooncake.events("load_outcome", name)
        assert event.load_outcome.outcome == outcome
        assert event.load_outcome.peer.address == gone
        assert event.load_outcome.mode == c.FAILURE_MODE_HANDSHAKE
    recomputed = mooncake.event("load_outcome", names[1]).load_outcome
    assert recomputed.tokens_recomputed == second.body["usage"]["prompt_tokens"]


def test_a_sick_peer_is_quarantined(mooncake: Bench) -> None:
    """After a failure the next request to it is recomputed without an attempt."""
    pair, sick = mooncake.observed, f"{LOOPBACK}:{free_port()}"
    lost = {"remote_engine_id": "sick", "remote_bootstrap_addr": f"http://{sick}"}
    mooncake.enforce(
        kvLoadFailure={"action": "recompute"},
        peerQuarantine={"failures": 1, "window": "60s", "duration": "10m", "maxPeersPercent": 100},
    )
    names = [new_name("mc"), new_name("mc")]
    for name in names:
        answer = pair.load(name, _prompt(name), {**pair.prefilled(_prompt(name)), **lost})
        assert answer.completion == pair.computed(_prompt(name))

    assert mooncake.failure(names[0]).peer.address == sick
    decided = mooncake.event("load_outcome", names[1]).load_outcome
    assert (decided.outcome, decided.decided_by) == (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_QUARANTINE)
    assert not mooncake.events("transfer_failure", names[1])


def _doctor(mooncake: Bench) -> str:
    return mooncake.agent.ctl("doctor").output


def test_a_prompt_that_nobody_reads(mooncake: Bench) -> None:
    """Prefill gives its blocks up after its own time: an expired lease on both sides, and vLLM counts as many as the hooks."""
    pair, name = mooncake.observed, new_name("mc")
    pair.prefilled(_prompt(name), name)

    def expired() -> list[Event]:
        pair.computed("Wake up.")  # an idle engine does not look at its leases
        return mooncake.events("transfer_failure", name)

    (event,) = until(expired, "The lease does not expire")
    assert event.transfer_failure.mode == c.FAILURE_MODE_EXPIRED
    assert event.transfer_failure.direction == c.DIRECTION_SEND
    closed = mooncake.event("lease_closed", name).lease_closed
    assert closed.ending == LEASE_ENDING_EXPIRED
    until(
        lambda: re.search(
            r"engine prefill/0: vLLM's own counters agree: \d+ expired lease", _doctor(mooncake)
        ),
        lambda: f"doctor does not compare prefill's counters:\n{_doctor(mooncake)}",
    )
    assert "vLLM counts" not in _doctor(mooncake)


def test_failed_loads_are_as_many_as_vllm_counts(mooncake: Bench) -> None:
    """Decode's doctor compares them."""
    pair, name = mooncake.observed, new_name("mc")
    lost = {"remote_engine_id": "nobody", "remote_bootstrap_addr": f"http://{LOOPBACK}:{free_port()}"}
    pair.load(name, _prompt(name), {**pair.prefilled(_prompt(name)), **lost})
    mooncake.failure(name)
    until(
        lambda: re.search(r"engine decode/0: vLLM's own counters agree: \d+ failed load", _doctor(mooncake)),
        lambda: f"doctor does not compare decode's counters:\n{_doctor(mooncake)}",
    )
    assert "vLLM counts" not in _doctor(mooncake)


def test_a_peer_killed_in_mid_load(mooncake: Bench) -> None:
    """Its sockets say nothing, so vLLM waits out its own time; then the request is recomputed. The pair is dead after it."""
    pair, name = mooncake.observed, new_name("mc")
    prompt = _prompt(name)
    expected, params = pair.computed(prompt), pair.prefilled(prompt)
    mooncake.enforce(kvLoadFailure={"action": "recompute"})
    with ThreadPoolExecutor(1) as sender, stopped(pair.prefill):
        answer = sender.submit(pair.load, name, prompt, params)
        until(lambda: mooncake.events("deferral_start", name), "The request does not wait")
        signal_group(pair.prefill, signal.SIGKILL)
        assert answer.result().completion == expected

    failure = mooncake.failure(name)
    assert failure.peer.address == pair.bootstrap
    assert failure.peer.engine_id == pair.engine_id
    assert (failure.mode, failure.error_type) == (c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_TIMEOUT)
    (event,) = mooncake.events("load_outcome", name)
    assert event.load_outcome.outcome == c.OUTCOME_RECOMPUTED
