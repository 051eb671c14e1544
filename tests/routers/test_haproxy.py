"""HAProxy, a load balancer that asks for the readiness, in front of servers that are ordered out of rotation."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from demo.common.processes import Child, free_port
from demo.servers import LOOPBACK
from tests.support.routers.backends import READY
from tests.support.routers.routers import Router, serves

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.routers.backends import Backends

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        shutil.which("haproxy") is None, reason="there is no haproxy on PATH; make setup-routers installs it"
    ),
]

_CONFIG = """\
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend api
  bind {address}
  default_backend engines
backend engines
  balance roundrobin
  option httpchk GET {path}
  http-check expect status 200
  default-server check inter 1s fall 1 rise 1
{servers}
"""


@pytest.fixture
def balancer(backends: Backends, tmp_path: Path) -> Iterator[Router]:
    """Run one over all servers."""
    address = f"{LOOPBACK}:{free_port()}"
    servers = "\n".join(f"  server {name} {url.partition('://')[2]}" for name, url in backends.urls.items())
    config = tmp_path / "haproxy.cfg"
    config.write_text(_CONFIG.format(address=address, path=READY, servers=servers))
    command = ["haproxy", "-db", "-f", str(config)]
    child = Child("haproxy", command, env=dict(os.environ), cwd=tmp_path, log=tmp_path / "haproxy.log")
    try:
        child.wait_until(lambda: serves(f"http://{address}{READY}"), what="ready")
        yield Router(f"http://{address}")
    finally:
        child.stop()


def test_out_of_rotation_and_back(backends: Backends, balancer: Router) -> None:
    """Requests go to the others while the order lasts; with all servers out it answers 503 itself."""
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
