"""Whether a peer that did not answer a handshake refuses connections: to ZeroMQ a closed port is mere silence."""

from __future__ import annotations

import socket
import threading
from typing import Final

DEADLINE: Final = 0.2
"""Seconds that one attempt may take, the look-up of the name included."""

_running = threading.BoundedSemaphore(1)


def refuses(host: str, port: int, deadline: float = DEADLINE) -> bool:
    """Tell whether *host* refuses a connection to *port*; False where it takes it, is silent or cannot be asked in time.

    A look-up of a name cannot be given a deadline, so the attempt has a thread of its own; while one hangs in a
    look-up no other is made.
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
