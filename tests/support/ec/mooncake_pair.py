"""An encoder and a language model with vLLM's ECMooncakeConnector over TCP, and a client that does what its router does."""

from __future__ import annotations

import json
import uuid
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

from demo.common.client import chat, fetch
from demo.common.images import Picture
from demo.common.metrics import Metrics
from demo.common.processes import free_port
from demo.common.steps import until
from demo.common.vision_model import tiny_vision_model
from demo.ec.stack import environment
from demo.servers import LOOPBACK, ROOT, Server, ServerSpec
from tests.support.ec.bench import TOKENS, Ask, EcBench, ask
from tests.support.kv import extra_connectors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Executor, Future
    from pathlib import Path
    from typing import Any

    from demo.common.agent import Agent
    from demo.common.client import Answer

PUSH_WAIT_SECONDS = 3.0
"""How long the language model waits for a push that does not come."""

_LONG = 1500


class MooncakeEcBench(EcBench):
    """The language model and the encoder that pushes to it."""

    def __init__(self, agent: Agent, encoder: Server, language: Server, *, ports: tuple[int, int]) -> None:
        super().__init__(agent, language)
        self.encoder = encoder
        producer, self._consumer_port = ports
        self.peer = f"{LOOPBACK}:{producer}"

    def push(self, request: Ask) -> None:
        """Have the encoder encode the pictures of *request* and push them to the language model."""
        params = {"consumer_zmq": f"tcp://{LOOPBACK}:{self._consumer_port}", **self._named(request)}
        answer = chat(self.encoder.url, request.parts, max_tokens=1, ec_transfer_params=params)
        assert answer.status == HTTPStatus.OK, answer.text

    def load(self, request: Ask) -> Answer:
        """Send *request* to the language model, which awaits a push of each of its pictures."""
        return chat(
            self.engine.url,
            request.parts,
            max_tokens=TOKENS,
            ec_transfer_params=self._named(request),
            headers={"X-Request-Id": request.name},
        )

    @contextmanager
    def busy(self, senders: Executor) -> Iterator[Future[Answer]]:
        """Have the language model generate text meanwhile: with the V1 model runner a step without tokens loads nothing."""
        running = Metrics.parse(fetch(f"{self.engine.url}/metrics").text).value("vllm:num_requests_running")
        sent = senders.submit(self.send, ask(0), max_tokens=_LONG)

        def generates() -> bool:
            scrape = Metrics.parse(fetch(f"{self.engine.url}/metrics").text)
            return scrape.value("vllm:num_requests_running") > running

        until(generates, "The language model generates nothing")
        yield sent
        assert sent.result().status == HTTPStatus.OK

    @staticmethod
    def _named(request: Ask) -> Mapping[str, Any]:
        pictures = [part for part in request.parts if isinstance(part, Picture)]
        return {"ec_items": [{"transfer_id": f"{request.name}/{index}"} for index in range(len(pictures))]}


@contextmanager
def mooncake_ec_bench(agent: Agent, logs: Path) -> Iterator[MooncakeEcBench]:
    """Run both servers beside *agent*."""
    ports = free_port(), free_port()
    servers: list[Server] = []
    try:
        for name, role, port in zip(
            ("encoder", "language"), ("ec_producer", "ec_consumer"), ports, strict=True
        ):
            servers.append(_start(name, role, port, agent.endpoint, logs))
        for server in servers:
            server.wait_ready()
        encoder, language = servers
        bench = MooncakeEcBench(agent, encoder, language, ports=ports)
        yield bench
        bench.close()
    finally:
        for server in servers:
            server.stop()


def _start(name: str, role: str, port: int, endpoint: str, logs: Path) -> Server:
    config = {
        "ec_connector": "ECMooncakeConnector",
        "ec_role": role,
        "engine_id": f"{name}-{uuid.uuid4().hex[:8]}",
        "ec_ip": LOOPBACK,
        "ec_port": port,
        "ec_buffer_device": "cpu",
        "ec_buffer_size": 1 << 24,
        "ec_connector_extra_config": {"mooncake_protocol": "tcp", "push_wait_timeout_s": PUSH_WAIT_SECONDS},
    }
    spec = ServerSpec(
        name,
        args=("--ec-transfer-config", json.dumps(config)),
        env={
            **extra_connectors.environment(),
            **environment(endpoint, name, "encoder" if role == "ec_producer" else "both"),
            "PENSTOCK_ALLOW_FAULTS": "1",
        },
    )
    return Server(spec, model=tiny_vision_model(ROOT / ".cache" / "models"), logs=logs)
