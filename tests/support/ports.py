"""Ports of servers that tests start."""

from __future__ import annotations

import socket

from demo.servers import LOOPBACK


def listens(port: int) -> bool:
    """Whether a process accepts connections on a port of the loopback interface."""
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0
