"""Whether a port refuses connections."""

from __future__ import annotations

import socket

from penstock.instrumentation.vllm.kv.nixl.port_probe import connection_refused

from demo.common.processes import free_port
from tests.support.kv.nixl_pair import HOST


def test_connection_refused() -> None:
    """A closed port refuses; an open port and an unknown name do not."""
    with socket.create_server((HOST, 0)) as listener:
        # An attempt that runs on makes the next one return at once.
        assert not connection_refused(HOST, listener.getsockname()[1], deadline=60.0)
    assert connection_refused(HOST, free_port(), deadline=60.0)
    assert not connection_refused("no-such-host.invalid", 80)
