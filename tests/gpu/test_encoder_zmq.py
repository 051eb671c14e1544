"""ZmqECConnector on a GPU, V2 model runner: an encoder and a language model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

import pytest
from penstock.proto.v1 import common_pb2 as c

from demo.common.client import chat
from demo.common.link import Link
from demo.common.processes import free_port
from demo.common.steps import until
from demo.common.vision_model import tiny_vision_model
from demo.ec.servers import encoder_spec, language_spec
from demo.ec.stack import PATIENCE
from demo.servers import ROOT, Server
from tests.support.ec.bench import Ask, EcBench, ask
from tests.support.ec.zmq_server import INTO_THE_FIRST
from tests.support.gpu.agreement import agreement
from tests.support.gpu.moved import Moved
from tests.support.gpu.servers import on_gpu, penstock, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from demo.common.agent import Agent

_REQUESTS = 6


class Pair(NamedTuple):
    """The encoder, a client of the language model, and the link between both."""

    encoder: Server
    bench: EcBench
    link: Link

    def encode(self, request: Ask) -> None:
        """Have the encoder encode the request's pictures."""
        answer = chat(self.encoder.url, request.parts, max_tokens=1)
        assert answer.status == HTTPStatus.OK, answer.text


@pytest.fixture(scope="module")
def pair(agent: Agent, logs: Path) -> Iterator[Pair]:
    """Give an encoder and a language model."""
    port = free_port()
    with Link(port) as link:
        specs = (
            on_gpu(encoder_spec("encoder", port=port, env=penstock("encoder", agent.endpoint))),
            on_gpu(
                language_spec(
                    "language",
                    producers=[link.address],
                    extra=PATIENCE,
                    env=penstock("language", agent.endpoint),
                )
            ),
        )
        with running(specs, model=tiny_vision_model(ROOT / ".cache" / "models"), logs=logs) as servers:
            encoder, language = servers
            bench = EcBench(agent, language)
            yield Pair(encoder, bench, link)
            bench.close()


def test_the_language_model_takes_encoder_outputs(pair: Pair, measured: Callable[[str], None]) -> None:
    """The language model takes the encoder's outputs by ZmqECConnector; Penstock reports each item."""
    requests = [ask(2) for _ in range(_REQUESTS)]
    expected = [pair.bench.send(request.disguised()).tokens for request in requests]
    pair.bench.empty()
    before = Moved.until_now(pair.bench, "ec")
    answers = []
    for request in requests:
        pair.encode(request)
        answers.append(pair.bench.send(request).tokens)
    same = agreement(answers, expected)
    measured(str(same))
    measured(str(Moved.wait(pair.bench, "ec", before, 2 * _REQUESTS)))
    assert same.holds


def test_a_cut_transfer_is_encoded_locally(pair: Pair, measured: Callable[[str], None]) -> None:
    """The link is cut in the midst of an item; the policy has the language model encode it itself."""
    bench, link = pair.bench, pair.link
    bench.enforce(ecLoadFailure={"action": "recompute"})
    requests = [ask() for _ in range(3)]
    expected = [bench.send(request.disguised()).tokens for request in requests]
    pair.encode(requests[0])
    link.hold(INTO_THE_FIRST)
    with ThreadPoolExecutor(1) as sender:
        try:
            sent = sender.submit(bench.send, requests[0])
            until(lambda: link.held, "no transfer has begun")
            link.take_down()
            first = sent.result().tokens
        finally:
            link.bring_up()
    same = agreement([first, *(bench.send(request).tokens for request in requests[1:])], expected)
    measured(str(same))
    outcome = bench.outcome(requests[0])
    measured(f"outcome {c.Outcome.Name(outcome.outcome)}")
    assert outcome.outcome == c.OUTCOME_RECOMPUTED
    assert same.holds
    bench.forget()
