"""ZeroMQ sockets of both sides: TCP options that end a dead connection, and the events of a monitor.

The options end a connection whose other end has disappeared or takes nothing. Not ZeroMQ's heartbeats: they also end a connection
whose process is only stopped for a while. The kernel disconnects a peer that acknowledges nothing for :data:`_STALLED` although
data is queued for it; libzmq then drops its queue.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple

import zmq
from zmq.utils.monitor import recv_monitor_message

if TYPE_CHECKING:
    from collections.abc import Iterator

_STALLED: Final = 6_000

KEEPALIVE: Final = {
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 5,
    zmq.TCP_KEEPALIVE_INTVL: 2,
    zmq.TCP_KEEPALIVE_CNT: 3,
    zmq.TCP_MAXRT: _STALLED,
}
"""Of a ZeroMQ socket; the first in seconds, the last in milliseconds."""


class MonitorEvent(NamedTuple):
    """An event (``zmq.EVENT_*``) and its value: a descriptor, an errno, a ZAP status or a ``zmq.PROTOCOL_ERROR_*``."""

    event: int
    value: int


def drain_events(monitor: zmq.Socket[bytes]) -> Iterator[MonitorEvent]:
    """Yield the events that have arrived. Never blocks."""
    with contextlib.suppress(zmq.ZMQError):
        while True:
            found = recv_monitor_message(monitor, zmq.NOBLOCK)
            yield MonitorEvent(found["event"], found["value"])
