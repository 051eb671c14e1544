"""How a connection whose other end is gone without a word is noticed: by TCP, on both sides.

Not by ZeroMQ's heartbeats: they are bytes that no message accounts for (``undelivered.py``), and they end a connection whose
other end merely computes. A peer that takes nothing for :data:`_STALLED` although something is on its way to it is disconnected
too, so that what is queued for it is let go.
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
