"""Prefill and decode over NIXL on one GPU, V2 model runner: GPU memory, and host buffers."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import common_pb2 as c

from demo.common.model import tiny_model
from demo.servers import ROOT
from demo.stack import Stack
from tests.support.engine.bench import wait_known
from tests.support.gpu.agreement import agreement
from tests.support.gpu.moved import Moved
from tests.support.gpu.servers import nixl_specs, running
from tests.support.kv.bench import Bench

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from demo.common.agent import Agent

_REQUESTS = 8


@pytest.fixture(scope="module", params=["cuda", "cpu"], ids=["GPU memory", "host buffer"])
def stack(request: pytest.FixtureRequest, agent: Agent, logs: Path) -> Iterator[Stack]:
    """Give prefill and decode that move this memory."""
    model = tiny_model(ROOT / ".cache" / "models")
    directory = logs / request.param
    directory.mkdir()
    with running(nixl_specs(agent.endpoint, request.param), model=model, logs=directory) as servers:
        for server in servers:
            wait_known(agent, server.spec.name)
        yield Stack(agent, "", None, *servers)


@pytest.fixture
def kv(stack: Stack) -> Iterator[Bench]:
    """Give a client of the stack that begins and ends without a policy."""
    bench = Bench(stack)
    bench.forget()
    yield bench
    bench.forget()
    bench.close()


def test_decode_reads_the_blocks(kv: Bench, measured: Callable[[str], None]) -> None:
    """Decode reads prefill's blocks over NIXL; Penstock reports each transfer."""
    before = Moved.until_now(kv, "kv")
    requests = [kv.prefilled(4) for _ in range(_REQUESTS)]
    answers = [kv.decode(request) for request in requests]
    assert [answer.status for answer in answers] == [HTTPStatus.OK] * _REQUESTS
    same = agreement([answer.completion for answer in answers], [request.text for request in requests])
    measured(str(same))
    for request in requests:
        kv.closed(request)
        assert not kv.events("transfer_failure", request.name)
    measured(str(Moved.wait(kv, "kv", before, _REQUESTS)))
    assert same.holds


def test_a_failed_handshake_is_recomputed(kv: Bench, measured: Callable[[str], None]) -> None:
    """A handshake with a closed port fails; the policy has decode compute the prompt itself."""
    kv.enforce(kvLoadFailure={"action": "recompute"})
    requests = [kv.misled(4) for _ in range(3)]
    answers = [kv.decode(request).completion for request in requests]
    same = agreement(answers, [request.text for request in requests])
    measured(str(same))
    for request in requests:
        outcome = kv.outcome(request)
        assert outcome.outcome == c.OUTCOME_RECOMPUTED
        assert outcome.tokens_recomputed == request.tokens
    assert same.holds


def test_a_failed_transfer_is_recomputed(kv: Bench, measured: Callable[[str], None]) -> None:
    """A drill fails transfers of blocks; the policy has decode compute the prompt itself."""
    kv.decode(kv.prefilled())
    kv.enforce(kvLoadFailure={"action": "recompute"})
    requests, answers = [], []
    with kv.drill("transfer"):
        for _ in range(4):
            requests.append(kv.prefilled(4))
            answers.append(kv.decode(requests[-1]).completion)
    same = agreement(answers, [request.text for request in requests])
    measured(str(same))
    for request in requests:
        assert kv.failure(request).mode == c.FAILURE_MODE_TRANSFER
        assert kv.outcome(request).outcome == c.OUTCOME_RECOMPUTED
    assert same.holds


def test_a_policy_lets_the_request_fail(kv: Bench, measured: Callable[[str], None]) -> None:
    """With action fail the client gets 503 with the cause."""
    kv.enforce(kvLoadFailure={"action": "fail"})
    request = kv.misled()
    answer = kv.decode(request)
    measured(f"HTTP {answer.status}")
    assert answer.status == HTTPStatus.SERVICE_UNAVAILABLE, answer.text
    assert request.peer in answer.text
