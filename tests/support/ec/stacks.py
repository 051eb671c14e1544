"""Agents and servers for the tests of encoder outputs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from demo.common.agent import Agent
from demo.common.otlp_receiver import Receiver
from tests.support.agent.agent import short_directory
from tests.support.ec.files import FileBench, start_file_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.engine.pairs import Variant


@contextmanager
def agent_with_backend(*, engines: int) -> Iterator[tuple[Agent, Receiver]]:
    """Run an agent that exports to a trace backend beside it, as any user."""
    receiver = Receiver()
    with short_directory() as directory, pytest.MonkeyPatch.context() as patch:
        for variable in ("OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED", "OTEL_EXPORTER_OTLP_PROTOCOL"):
            patch.delenv(variable, raising=False)
        agent = Agent(directory, otlp_endpoint=receiver.endpoint, engines=engines)
        receiver.start()
        try:
            agent.start()
            yield agent, receiver
        finally:
            agent.stop()
            receiver.stop()


@contextmanager
def file_bench(variant: Variant, *, files: Path, logs: Path) -> Iterator[FileBench]:
    """Run an agent and a server with ECExampleConnector."""
    with agent_with_backend(engines=1) as (agent, _):
        server = start_file_server(variant, "files", endpoint=agent.endpoint, directory=files, logs=logs)
        bench = FileBench(agent, server, files)
        try:
            server.wait_ready()
            yield bench
        finally:
            bench.close()
            server.stop()
