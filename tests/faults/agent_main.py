"""The real agent, told to die at a chosen place. The faults are put around its parts from here; it knows of none.

``FAULT`` names the place and how often it is passed before: ``before-commit 5``. SIGUSR1 sets its wall clock an hour
forward, SIGUSR2 an hour back.

| place | what has happened |
|---|---|
| ``before-commit`` | all rows of a batch are written, the transaction is not committed |
| ``after-commit`` | it is committed; neither the sender nor the metrics have been notified |
| ``before-export`` | spans are ready, the backend has seen none of them |
| ``after-export`` | the backend has taken them; the cursor does not say so |

``FAULT=slow-backup 1`` kills nothing: a backup copies five pages a second.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

from tests.faults.shift import WallClock

if TYPE_CHECKING:
    from collections.abc import Callable

_HOUR = 3600.0


class Trap:
    """Kills the process when it is passed for the n-th time."""

    def __init__(self, passes: int) -> None:
        self._left = passes

    def step(self) -> None:
        """Count one pass."""
        self._left -= 1
        self.spring()

    def spring(self) -> None:
        """Kill the process if it has been passed often enough."""
        if self._left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)


def _before(owner: Any, name: str, action: Callable[..., None]) -> None:
    original = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        action(*args)
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)


def _after(owner: Any, name: str, action: Callable[[], None]) -> None:
    original = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        action()
        return result

    setattr(owner, name, wrapped)


def install(place: str, passes: int) -> None:
    """Set the trap."""
    from penstock.agent.admin.calls import status
    from penstock.agent.journal.commit.transaction import Transaction
    from penstock.agent.journal.journal import Journal
    from penstock.agent.traces.export.otlp_client import OtlpClient

    trap = Trap(passes)
    appended: list[None] = []

    def step_if_appended(*_: Any) -> None:
        if appended:
            trap.step()

    if place == "before-commit":
        _before(Transaction, "append", lambda *_: appended.append(None))
        _before(Transaction, "finish", step_if_appended)
    elif place == "after-commit":
        _before(Transaction, "append", lambda *_: appended.append(None))
        _before(Journal, "_done", step_if_appended)
    elif place == "before-export":
        _before(OtlpClient, "send", lambda *_: trap.step())
    elif place == "after-export":
        _after(OtlpClient, "send", trap.step)
    elif place == "slow-backup":
        status._PAGES = 1
        _before(status._Steps, "__call__", lambda *_: time.sleep(0.2))
    else:
        raise SystemExit(f"FAULT names no place: {place!r}")


def main() -> None:
    """Run the agent."""
    clock = WallClock()
    clock.install()
    signal.signal(signal.SIGUSR1, lambda *_: clock.move(_HOUR))
    signal.signal(signal.SIGUSR2, lambda *_: clock.move(-_HOUR))
    place, _, passes = os.environ.get("FAULT", "").partition(" ")
    if place:
        install(place, int(passes))
    from penstock.agent.daemon.main import main as agent

    agent()


if __name__ == "__main__":
    main()
