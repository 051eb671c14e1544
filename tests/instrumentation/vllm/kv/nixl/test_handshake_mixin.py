"""The clock offset that a handshake yields; whether a port refuses connections."""

from __future__ import annotations

import socket

import pytest
from penstock.instrumentation.vllm.kv.nixl.handshake_mixin import clock_offset_ns, connection_refused

from demo.common.processes import free_port
from tests.support.kv.nixl_pair import HOST


@pytest.mark.parametrize(
    ("result", "took_ms", "offset_ms"),
    [
        (({}, 0.69), 1_400, 0),
        (({}, -0.69), 1_400, 0),
        (({}, 0.69), 1_300, 690),
        (({}, -86_400.0), 1_300, -86_400_000),
        (({}, 0.0), 0, 0),
        (({},), 0, None),
        (None, 0, None),
    ],
    ids=str,
)
def test_a_slow_handshake_tells_no_clock_offset(result: object, took_ms: int, offset_ms: int | None) -> None:
    """VLLM's estimate is off by at most half of the round trip; smaller offsets are 0."""
    found = clock_offset_ns(result, took_ms * 1_000_000)
    assert found == (None if offset_ms is None else offset_ms * 1_000_000)


def test_connection_refused() -> None:
    """A closed port refuses; an open port and an unknown name do not."""
    with socket.create_server((HOST, 0)) as listener:
        # An attempt that runs on makes the next one return at once.
        assert not connection_refused(HOST, listener.getsockname()[1], deadline=60.0)
    assert connection_refused(HOST, free_port(), deadline=60.0)
    assert not connection_refused("no-such-host.invalid", 80)
