"""What the tests of routers share: servers to stand in front of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.routers.backends import Backends, running_backends

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backends]:
    """Run three servers."""
    with running_backends("one", "two", "three", logs=tmp_path_factory.mktemp("backends")) as found:
        yield found


@pytest.fixture
def backends(servers: Backends) -> Iterator[Backends]:
    """Return them as they were."""
    yield servers
    servers.reset()
