"""Agent, trace backend and a pair of engines, in any variant; the demo's steps run on it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from demo.common.agent import Agent
from demo.common.otlp_receiver import Receiver
from demo.stack import Stack
from demo.steps import POLICY
from tests.support.agent.agent import short_directory
from tests.support.engine.bench import wait_known
from tests.support.engine.pairs import Variant, running_pair

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from demo.common.otlp_receiver import Span

# The span that the tests' caller says it is in; the caller would export it.
CALLER_SPAN = "00f067aa0ba902b7"


@contextmanager
def variant_stack(variant: Variant, *, logs: Path) -> Iterator[Stack]:
    """Run all parts; at the end, see that the instrumentation had nothing to contain."""
    with short_directory() as directory:
        receiver = Receiver()
        receiver.start()
        agent = Agent(directory, otlp_endpoint=receiver.endpoint)
        try:
            agent.start()
            with running_pair(variant, logs=logs, endpoint=agent.endpoint) as pair:
                for server in ("prefill", "decode"):
                    wait_known(agent, server)
                yield Stack(agent, receiver.endpoint, receiver, pair.prefill, pair.decode)
                contained = agent.metrics().select("penstock_guard_errors_total")
                assert not contained, [str(sample) for sample in contained]
        finally:
            agent.stop()
            receiver.stop()


def forget_policy(stack: Stack) -> None:
    """Let vLLM's own configuration hold again, in all engines."""
    deleted = stack.agent.ctl("delete", "policy", POLICY)
    if deleted.code == 0:
        return
    assert "does not exist" in deleted.output, deleted.output


def named(spans: tuple[Span, ...], name: str, service: str = "vllm-decode") -> list[Span]:
    """Return the spans of one name and service."""
    return [span for span in spans if span.name == name and span.service == service]
