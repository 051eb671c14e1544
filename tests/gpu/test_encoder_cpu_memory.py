"""vLLM's ECCPUConnector, which needs the V2 model runner and so a GPU: outputs in host memory, and between servers over NIXL."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from demo.common.client import chat
from demo.common.processes import free_port
from demo.common.vision_model import tiny_vision_model
from demo.servers import ROOT
from tests.support.ec.bench import TOKENS, EcBench, ask
from tests.support.engine.bench import wait_known
from tests.support.gpu.agreement import agreement
from tests.support.gpu.servers import offload_spec, running

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from demo.common.agent import Agent

_REQUESTS = 6
_COUNTED = ("penstock_transfers_total", "penstock_transfer_failures_total", "penstock_deferrals_total")


def _reported(bench: EcBench) -> str:
    """Return what Penstock has counted of the server's encoder outputs."""
    metrics = bench.agent.metrics()
    found = [
        f"{name}{{result={sample.labels.get('result', '')},direction={sample.labels.get('direction', '')}}} "
        f"{sample.value:g}"
        for name in _COUNTED
        for sample in metrics.select(name, server=bench.server, channel="ec")
    ]
    return ", ".join(found) or "no transfer of encoder outputs is counted"


def test_outputs_come_back_from_host_memory(
    agent: Agent, logs: Path, measured: Callable[[str], None]
) -> None:
    """ECCPUConnector keeps encoder outputs in host memory and loads them for a later request."""
    model = tiny_vision_model(ROOT / ".cache" / "models")
    with running([offload_spec("offload", agent.endpoint, "ec_both")], model=model, logs=logs) as (server,):
        wait_known(agent, "offload")
        bench = EcBench(agent, server)
        requests = [ask(2) for _ in range(_REQUESTS)]
        expected = [bench.send(request.again()).tokens for request in requests]
        bench.empty()
        same = agreement([bench.send(request).tokens for request in requests], expected)
        for request in requests:
            bench.closed(request)
        measured(str(same))
        measured(_reported(bench))
        bench.close()
        assert same.holds


def test_outputs_move_between_servers(agent: Agent, logs: Path, measured: Callable[[str], None]) -> None:
    """ECCPUConnector moves encoder outputs from an encoder to a language model over NIXL."""
    specs = [
        offload_spec("offload-encoder", agent.endpoint, "ec_producer", port=free_port()),
        offload_spec("offload-language", agent.endpoint, "ec_consumer", port=free_port()),
    ]
    model = tiny_vision_model(ROOT / ".cache" / "models")
    with running(specs, model=model, logs=logs) as (encoder, language):
        wait_known(agent, "offload-language")
        bench = EcBench(agent, language)
        requests = [ask(2) for _ in range(_REQUESTS)]
        expected = [bench.send(request.disguised()).tokens for request in requests]
        bench.empty()
        answers = []
        for request in requests:
            encoded = chat(encoder.url, request.parts, max_tokens=1)
            assert encoded.status == HTTPStatus.OK, encoded.text
            where = encoded.body["ec_transfer_params"]
            assert where, "The encoder names no place of its outputs"
            answer = chat(
                language.url,
                request.parts,
                max_tokens=TOKENS,
                ec_transfer_params=where,
                headers={"X-Request-Id": request.name},
            )
            answers.append(answer.tokens)
            bench.closed(request)
        same = agreement(answers, expected)
        measured(str(same))
        measured(_reported(bench))
        bench.close()
        assert same.holds
