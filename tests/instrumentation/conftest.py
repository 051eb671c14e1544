"""Fixtures of the engine's core: a guard that raises, an agent's double, a runtime that talks to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core.guard import guard
from penstock.instrumentation.core.settings import Settings
from penstock.instrumentation.runtime import Runtime

from tests.support.agent.agent import short_directory
from tests.support.agent.fake_agent import FakeAgent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _guard(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let errors of our own through, and begin and end with none counted."""
    guard.reset()
    monkeypatch.setattr(guard, "raising", True)
    yield
    guard.reset()


@pytest.fixture
def directory() -> Iterator[Path]:
    """Make a directory whose path is short enough for a socket."""
    with short_directory() as path:
        yield path


@pytest.fixture
def agent(directory: Path) -> Iterator[FakeAgent]:
    """Start an agent's double."""
    double = FakeAgent(f"unix://{directory}/ingest.sock").start()
    yield double
    double.stop()


@pytest.fixture
def make_runtime(directory: Path) -> Iterator[Callable[..., Runtime]]:
    """Make runtimes that talk to the double's socket, whether it is there or not."""
    made: list[Runtime] = []

    def make(**settings: Any) -> Runtime:
        runtime = Runtime()
        runtime.configure(Settings(**{"endpoint": f"unix://{directory}/ingest.sock", **settings}))
        runtime.identify(process="engine-core", key="0", model="tiny", vllm_version="0.32.0")
        made.append(runtime)
        return runtime

    yield make
    for runtime in made:
        runtime.stop(5.0)


@pytest.fixture
def runtime(make_runtime: Callable[..., Runtime]) -> Runtime:
    """Make one runtime."""
    return make_runtime()
