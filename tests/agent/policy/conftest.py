"""Fixtures of the policy tests: a database, a store and a served feed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from penstock.agent.policy.store.database import PolicyDatabase
from penstock.agent.policy.store.sqlite_store import PolicyStore

from tests.support.agent.agent import short_directory
from tests.support.policy.feed import FeedServer, running_feed
from tests.support.policy.policies import NOW

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


@pytest.fixture
def database(tmp_path: Path) -> Iterator[PolicyDatabase]:
    """Open a policy database in a temporary directory; close it after the test."""
    opened = PolicyDatabase.open(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def store(database: PolicyDatabase) -> PolicyStore:
    """Make a store whose clock stands still."""
    return PolicyStore(database, clock=NOW.timestamp)


@pytest.fixture
def directory() -> Iterator[Path]:
    """Return a directory whose path is short enough for a unix socket."""
    with short_directory() as path:
        yield path


@pytest.fixture
async def served(directory: Path) -> AsyncIterator[FeedServer]:
    """Serve a policy feed on a unix socket; an unanswered push is not repeated while a test lasts."""
    async with running_feed(directory, patience=600.0) as server:
        yield server
