"""vLLM's ECMooncakeConnector between two servers over TCP: what is pushed, and what a policy makes of what is not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import common_pb2 as c

from demo.common.agent import Agent
from demo.common.steps import until
from tests.support.agent.agent import short_directory
from tests.support.ec.bench import ask
from tests.support.ec.mooncake_pair import mooncake_ec_bench
from tests.support.kv.extra_connectors import needs_extra_connectors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.proto.v1.admin_pb2 import Span

    from tests.support.ec.bench import Ask
    from tests.support.ec.mooncake_pair import MooncakeEcBench

pytestmark = [pytest.mark.engine, needs_extra_connectors]

_CONNECTOR = {"connector": "ECMooncakeConnector", "channel": "ec"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MooncakeEcBench]:
    """Run the agent and both servers."""
    with short_directory() as directory:
        agent = Agent(directory, engines=2)
        try:
            agent.start()
            with mooncake_ec_bench(agent, tmp_path_factory.mktemp("ec-mooncake")) as bench:
                yield bench
        finally:
            agent.stop()


@pytest.fixture
def ec(served: MooncakeEcBench) -> Iterator[MooncakeEcBench]:
    """Begin and end without a policy, and see that our code raised nothing."""
    served.forget()
    yield served
    served.forget()
    assert not served.guard_errors()


def _loads(ec: MooncakeEcBench, request: Ask) -> list[Span]:
    ec.closed(request)
    return [span for span in ec.spans_of(request.name) if span.name == "ec.load"]


def test_a_pushed_picture_is_loaded(ec: MooncakeEcBench) -> None:
    """What the encoder has pushed comes to the same tokens as what is encoded here; both servers report the move."""
    ec.enforce(ecLoadFailure={"action": "recompute"})

    def loaded() -> Ask | None:
        request = ask()
        expected = ec.load(request.disguised()).tokens
        with ThreadPoolExecutor(1) as senders, ec.busy(senders):
            ec.push(request)
            assert ec.load(request).tokens == expected
        spans = _loads(ec, request)
        return request if spans and all(span.status == "unset" for span in spans) else None

    request = until(loaded, "No push is loaded")
    (span,) = _loads(ec, request)
    assert span.attributes["penstock.peer"] == ec.peer
    assert not ec.events("transfer_failure", request.name)
    assert not ec.events("load_outcome", request.name)
    moved = {**_CONNECTOR, "result": "ok"}
    assert ec.value("penstock_transfers_total", direction="receive", peer=ec.peer, **moved) >= 1
    sent = {"server": "encoder", "direction": "send", **moved}
    until(lambda: ec.value("penstock_transfers_total", **sent) >= 1, "The encoder's writes are not reported")
    assert ec.value("penstock_transfer_size_bytes_sum", channel="ec", direction="receive") > 0


def test_an_idle_engine_loads_nothing(ec: MooncakeEcBench) -> None:
    """A fault of vLLM's V1 model runner (docs/upstream.md): what has been pushed is lost, and the policy encodes it here."""
    ec.enforce(ecLoadFailure={"action": "recompute"})
    request = ask()
    expected = ec.load(request.disguised()).tokens
    ec.push(request)
    assert ec.load(request).tokens == expected
    outcome = ec.outcome(request)
    assert (outcome.outcome, outcome.mode) == (c.OUTCOME_RECOMPUTED, c.FAILURE_MODE_TIMEOUT)


@pytest.mark.parametrize("action", ["", "fail"])
def test_a_push_that_does_not_come(ec: MooncakeEcBench, action: str) -> None:
    """VLLM ends the request; under ``fail`` its client may send it elsewhere, and learns why."""
    if action:
        ec.enforce(ecLoadFailure={"action": action})
    request = ask()
    answer = ec.load(request)
    outcome = ec.outcome(request)
    assert (outcome.channel, outcome.outcome) == (c.CHANNEL_EC, c.OUTCOME_FAILED)
    assert (outcome.mode, outcome.error_type) == (c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT)
    if not action:
        assert outcome.decided_by == c.DECIDED_BY_VLLM
        assert answer.status == HTTPStatus.INTERNAL_SERVER_ERROR
        return
    assert outcome.decided_by == c.DECIDED_BY_POLICY
    assert answer.status == HTTPStatus.SERVICE_UNAVAILABLE
    message = answer.body["error"]["message"]
    assert all(part in message for part in ("EC load failure", "mode timeout", "can be retried")), message


def test_a_push_that_does_not_come_is_encoded_here(ec: MooncakeEcBench) -> None:
    """Under ``recompute``, with the tokens of the same picture under another name."""
    ec.enforce(ecLoadFailure={"action": "recompute"})
    request = ask()
    expected = ec.load(request.disguised()).tokens

    assert ec.load(request).tokens == expected
    outcome = ec.outcome(request)
    assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_POLICY)
    assert outcome.items_recomputed == 1
    assert ec.span_of(request.name, "penstock.recompute").attributes["penstock.items_recomputed"] == "1"


def test_a_deadline_ends_the_wait(ec: MooncakeEcBench) -> None:
    """The policy's patience is shorter than the connector's."""
    ec.enforce(
        ecLoadFailure={"action": "recompute"}, deferral={"maxStartWait": "200ms", "onTimeout": "recompute"}
    )
    request = ask()
    assert ec.load(request).status == HTTPStatus.OK
    assert ec.outcome(request).decided_by == c.DECIDED_BY_DEADLINE
