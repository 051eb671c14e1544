"""HAProxy as a process: Debian's package."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from demo.common.processes import Child, free_port
from demo.servers import LOOPBACK
from tests.support.routers.backends import READY
from tests.support.routers.routers import Router, serves

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

needs_haproxy = pytest.mark.skipif(
    shutil.which("haproxy") is None, reason="there is no haproxy on PATH; make setup-routers installs it"
)

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


@contextmanager
def balancing(urls: Mapping[str, str], *, directory: Path) -> Iterator[Router]:
    """Run one over the servers at *urls*, which it asks for their readiness, until the end of the block."""
    address = f"{LOOPBACK}:{free_port()}"
    servers = "\n".join(f"  server {name} {url.partition('://')[2]}" for name, url in urls.items())
    config = directory / "haproxy.cfg"
    config.write_text(_CONFIG.format(address=address, path=READY, servers=servers))
    command = ["haproxy", "-db", "-f", str(config)]
    child = Child("haproxy", command, env=dict(os.environ), cwd=directory, log=directory / "haproxy.log")
    try:
        child.wait_until(lambda: serves(f"http://{address}{READY}"), what="ready")
        yield Router(f"http://{address}")
    finally:
        child.stop()
