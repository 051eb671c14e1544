"""NVIDIA Dynamo's workers: what Penstock sees of vLLM without its API server. ``make test-dynamo`` builds and runs it."""

from __future__ import annotations

import secrets
import signal
from contextlib import contextmanager
from http import HTTPStatus
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from demo.common.agent import Agent
from demo.common.otlp_receiver import Receiver
from demo.common.steps import until
from tests.support.agent.agent import short_directory
from tests.support.engine.dynamo import running_dynamo

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from demo.common.otlp_receiver import Span
    from tests.support.engine.dynamo import Dynamo

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(find_spec("dynamo") is None, reason="needs Dynamo: make test-dynamo"),
]


class Pair:
    """Dynamo and the agent beside it."""

    def __init__(self, agent: Agent, receiver: Receiver, dynamo: Dynamo) -> None:
        self.agent = agent
        self.receiver = receiver
        self.dynamo = dynamo

    def says(self, *words: str, of: tuple[str, ...]) -> str:
        """Wait until what ``agentctl`` *of* prints has all *words*, and return it."""
        said = ""

        def there() -> bool:
            nonlocal said
            said = self.agent.ctl(*of).output
            return all(word in said for word in words)

        until(there, lambda: f"agentctl {' '.join(of)} does not say {words}:\n{said}")
        return said

    def requests_of(self, trace_id: str) -> list[Span]:
        """Return the exported requests of a trace; empty until both workers' are there."""
        found = [span for span in self.receiver.spans(trace_id) if span.name == "penstock.request"]
        return found if {span.service for span in found} == {"vllm-prefill", "vllm-decode"} else []


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Start the agent and Dynamo."""
    with _running(tmp_path_factory.mktemp("dynamo")) as running:
        yield running


@contextmanager
def _running(logs: Path, *, decode_dtype: str = "float32") -> Iterator[Pair]:
    with short_directory() as directory:
        receiver = Receiver()
        receiver.start()
        agent = Agent(directory, otlp_endpoint=receiver.endpoint)
        try:
            agent.start()
            with running_dynamo(agent.endpoint, logs=logs, decode_dtype=decode_dtype) as dynamo:
                yield Pair(agent, receiver, dynamo)
        finally:
            agent.stop()
            receiver.stop()


def _prompt() -> str:
    return f"{secrets.token_hex(16)} " * 12


def test_a_request_is_found_by_its_callers_names(pair: Pair) -> None:
    """Its blocks move; its trace is the caller's on both sides, and its X-Request-Id finds it."""
    trace_id, name = secrets.token_hex(16), f"client-{secrets.token_hex(6)}"
    headers = {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01", "X-Request-Id": name}
    assert pair.dynamo.ask(_prompt(), headers).status == HTTPStatus.OK
    spans = until(lambda: pair.requests_of(trace_id), f"Trace {trace_id} does not hold both workers")
    assert {span.attributes["penstock.client_request_id"] for span in spans} == {name}
    pair.says("kv.load", of=("trace", name))


def test_a_load_that_fails(pair: Pair) -> None:
    """A rehearsed failure is explained by the caller's name, whatever Dynamo's front end makes of it."""
    name = f"client-{secrets.token_hex(6)}"
    drill = (
        "inject-fault",
        "--selector",
        "role=decode",
        "--mode",
        "transfer",
        "--rate",
        "1.0",
        "--ttl",
        "60s",
    )
    assert pair.agent.ctl(*drill).code == 0
    try:
        pair.dynamo.ask(_prompt(), {"X-Request-Id": name})
    finally:
        pair.agent.ctl("drill", "stop", "--all")
    pair.says("could not load its KV state", of=("explain", name))


def test_sigterm_to_a_worker_is_a_stop(pair: Pair) -> None:
    """It comes last of this pair: the decode worker ends, and is not told as lost."""
    pair.dynamo.decode.signal(signal.SIGTERM)
    until(lambda: not pair.dynamo.decode.running, "The worker has not ended")
    pair.says("decode/0", "stopped", of=("get", "engines"))
    assert "vanished" not in pair.agent.ctl("diagnose").output


def test_a_true_failure_by_two_policies(tmp_path: Path) -> None:
    """Workers that refuse each other: the blocks are computed anew; by a policy set live the request fails, and says why."""
    with _running(tmp_path, decode_dtype="bfloat16") as pair:
        by_vllm, by_policy = (f"client-{secrets.token_hex(6)}" for _ in range(2))
        assert pair.dynamo.ask(_prompt(), {"X-Request-Id": by_vllm}).status == HTTPStatus.OK
        pair.says("incompatible", "were computed again", of=("explain", by_vllm))
        fail = "set-policy strict --selector role=decode --kv-load-failure fail --wait"
        assert pair.agent.ctl(*fail.split()).code == 0
        assert pair.dynamo.ask(_prompt(), {"X-Request-Id": by_policy}).status != HTTPStatus.OK
        pair.says("incompatible", "failed", of=("explain", by_policy))
