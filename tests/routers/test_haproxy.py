"""HAProxy, a load balancer that asks for the readiness, in front of servers that are ordered out of rotation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.routers.haproxy import balancing, needs_haproxy

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.routers.backends import Backends

pytestmark = [pytest.mark.long, needs_haproxy]


def test_out_of_rotation_and_back(backends: Backends, tmp_path: Path) -> None:
    """Requests go to the others while the order lasts; with all servers out it answers 503 itself."""
    with balancing(backends.urls, directory=tmp_path) as balancer:
        balancer.uses("one", "two", "three")
        backends.out("one")
        balancer.uses("two", "three")
        backends.out("two")
        balancer.uses("three")
        backends.back()
        balancer.uses("one", "two", "three")
        for name in backends.urls:
            backends.out(name)
        balancer.uses("503")
        backends.back()
        balancer.uses("one", "two", "three")
