"""Tests whether a peer that did not answer a handshake refuses connections, which ZeroMQ does not report."""

from __future__ import annotations

import socket
import threading
from typing import Final

DEADLINE: Final = 0.5
"""Seconds for one attempt, name resolution included."""

_running = threading.BoundedSemaphore(1)


def connection_refused(host: str, port: int, deadline: float = DEADLINE) -> bool:
    """Return whether *host* refuses a connection to *port*; False if it accepts, is silent or exceeds *deadline* (seconds).

    Name resolution has no deadline, so the attempt runs on a daemon thread of its own; while one hangs, further calls
    return False at once.
    """
    if not _running.acquire(blocking=False):
        return False
    refused: list[bool] = []
    thread = threading.Thread(
        target=_attempt, args=(host, port, deadline, refused), name="penstock-reach", daemon=True
    )
    try:
        thread.start()
    except BaseException:
        _running.release()
        raise
    thread.join(deadline)
    return bool(refused)


def _attempt(host: str, port: int, deadline: float, refused: list[bool]) -> None:
    try:
        with socket.create_connection((host.strip("[]"), port), timeout=deadline):
            pass
    except ConnectionRefusedError:
        refused.append(True)
    except (OSError, ValueError):
        pass
    finally:
        _running.release()
