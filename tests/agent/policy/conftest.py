"""A feed for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.agent import short_directory
from tests.support.policy_feed import FeedServer, running_feed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


@pytest.fixture
def directory() -> Iterator[Path]:
    """Return a directory with a short path."""
    with short_directory() as path:
        yield path


@pytest.fixture
async def served(directory: Path) -> AsyncIterator[FeedServer]:
    """Serve a policy feed."""
    async with running_feed(directory) as server:
        yield server
