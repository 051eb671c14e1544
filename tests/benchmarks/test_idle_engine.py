"""The idle engine side of the benchmark is a real one, and its threads are counted."""

from __future__ import annotations

import pytest

from benchmarks.load.idle_engine import running_idle_engine
from tests.support.agent.agent import short_directory
from tests.support.agent.fake_agent import FakeAgent


@pytest.mark.parametrize(("kind", "threads"), [("loop", 3), ("threads", 4)])
def test_its_threads_are_counted(kind: str, threads: int) -> None:
    """Exporter, loop and gRPC's poller; or exporter, reader and gRPC's two; and those of gRPC's core beside them."""
    with short_directory() as directory:
        agent = FakeAgent(f"unix://{directory}/ingest.sock").start()
        try:
            with running_idle_engine(agent.listen, kind, "worker") as engine:
                counted = engine.wake_ups()
                assert [hello.process for _, hello in agent.received.hellos] == ["worker"]
                assert engine.exporter in engine.python
                assert len(engine.python) == threads
                assert engine.python < set(counted)
                assert engine.pid not in counted
        finally:
            agent.stop()
