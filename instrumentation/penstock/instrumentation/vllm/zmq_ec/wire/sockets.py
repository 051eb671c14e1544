"""TCP options, on both sides, that end a connection whose other end has disappeared or takes nothing.

Not ZeroMQ's heartbeats: they also end a connection whose process is only stopped for a while. The kernel disconnects a
peer that acknowledges nothing for :data:`_STALLED` although data is queued for it; libzmq then drops its queue.
"""

from __future__ import annotations

from typing import Final

import zmq

_STALLED: Final = 6_000

OPTIONS: Final = {
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 5,
    zmq.TCP_KEEPALIVE_INTVL: 2,
    zmq.TCP_KEEPALIVE_CNT: 3,
    zmq.TCP_MAXRT: _STALLED,
}
"""Of a ZeroMQ socket; the first in seconds, the last in milliseconds."""
