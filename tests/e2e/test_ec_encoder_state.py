"""An encoder that a language model asks by the address that it announces: the explanation says what its engine does."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from demo.common.steps import until
from demo.common.vision_model import tiny_vision_model
from demo.common.workspace import start_agent
from demo.ec.servers import language_spec
from demo.ec.stack import PATIENCE, Encoder, environment
from demo.servers import ROOT, Server
from tests.support.agent.agent import short_directory
from tests.support.ec.bench import EcBench, ask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.common.agent import Agent

pytestmark = [pytest.mark.engine, pytest.mark.long]


class _Stack:
    """Both engines at one agent, without a link between them."""

    def __init__(self, agent: Agent, encoder: Encoder, started: Server, language: Server) -> None:
        self.agent = agent
        self.encoder = encoder
        self.started = started
        self.bench = EcBench(agent, language)

    @property
    def address(self) -> str:
        """Where the encoder says that its outputs are."""
        return f"127.0.0.1:{self.encoder.port}"

    def said(self, name: str) -> str:
        """Return what the explanation of a request says of the encoder."""
        lines = self.agent.ctl("explain", name).output.splitlines()
        return next((each for each in lines if each.startswith("Of the encoder ")), "")


@pytest.fixture
def stack() -> Iterator[_Stack]:
    """Start them; all ends with the test."""
    with short_directory() as directory, ExitStack() as parts, pytest.MonkeyPatch.context() as patch:
        for variable in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED"):
            patch.delenv(variable, raising=False)
        agent = start_agent(directory, parts, lambda _: None).agent
        model = tiny_vision_model(ROOT / ".cache" / "models")
        encoder = Encoder(agent.endpoint, model, directory)
        parts.callback(encoder.stop)
        started = encoder.start()
        spec = language_spec(
            "language",
            producers=[f"127.0.0.1:{encoder.port}"],
            extra={"load_failure": "fail", **PATIENCE, "probe_timeout": 1.0},
            env=environment(agent.endpoint, "language", "both"),
        )
        language = Server(spec, model=model, logs=directory)
        parts.callback(language.stop)
        for server in (started, language):
            server.wait_ready(say=lambda _: None)
        made = _Stack(agent, encoder, started, language)
        yield made
        made.bench.close()


def test_an_encoder_that_stands_still_and_one_that_ended(stack: _Stack) -> None:
    """A stopped process is silent, what it told last is not said to be so now; a killed one is not connected."""
    assert stack.address in stack.agent.ctl("describe", "engine", "encoder/0").output
    stopped = ask()
    os.killpg(stack.started.child.pid, signal.SIGSTOP)
    try:
        stack.bench.send(stopped)
        known = f": {stack.address} is engine encoder/0: "
        until(lambda: known in stack.said(stopped.name), "It is not said what the encoder does")
        until(
            lambda: any(
                word in stack.said(stopped.name) for word in ("nothing was heard of it", "is not connected")
            ),
            "It is not said that nothing is heard of the encoder",
        )
    finally:
        os.killpg(stack.started.child.pid, signal.SIGCONT)
    stack.encoder.kill()
    until(
        lambda: "it is not connected" in stack.said(stopped.name), "It is not said that the encoder is away"
    )
