"""A running ingest service."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import structlog

from tests.support.agent.agent import short_directory
from tests.support.agent.ingest import IngestHarness, running_ingest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Keep the service's log lines out of the tests' output: they come from another thread, at any time."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.reset_defaults()


@pytest.fixture
def ingest() -> Iterator[IngestHarness]:
    """Serve Ingest on a unix socket with a journal of its own."""
    with short_directory() as directory, running_ingest(directory) as harness:
        yield harness
