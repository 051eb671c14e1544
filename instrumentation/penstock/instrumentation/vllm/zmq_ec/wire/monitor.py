"""Reads the events of a ZeroMQ socket's monitor."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

import zmq
from zmq.utils.monitor import recv_monitor_message

if TYPE_CHECKING:
    from collections.abc import Iterator


class MonitorEvent(NamedTuple):
    """An event (``zmq.EVENT_*``) and its value: a descriptor, an errno, a ZAP status or a ``zmq.PROTOCOL_ERROR_*``."""

    event: int
    value: int


def drain(monitor: zmq.Socket[bytes]) -> Iterator[MonitorEvent]:
    """Yield the events that have arrived. Never blocks."""
    with contextlib.suppress(zmq.ZMQError):
        while True:
            found = recv_monitor_message(monitor, zmq.NOBLOCK)
            yield MonitorEvent(found["event"], found["value"])
