"""An admin service for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.agent.admin_server import AdminHarness, running_admin
from tests.support.agent.agent import short_directory

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def harness() -> Iterator[AdminHarness]:
    """Serve the admin service over an empty journal."""
    with short_directory() as directory, running_admin(directory) as running:
        yield running
