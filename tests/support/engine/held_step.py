"""A step of the engine that lasts as long as a test wants."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.instrumentation.runtime import Runtime

_LONGEST = 60.0


def hold_step(runtime: Runtime) -> Callable[[], None]:
    """Begin a step on a thread of its own; returns what ends it, again and again if need be."""
    entered, leave = threading.Event(), threading.Event()

    def step() -> None:
        with runtime.policy.step():
            entered.set()
            leave.wait(_LONGEST)

    thread = threading.Thread(target=step)
    thread.start()
    assert entered.wait(_LONGEST)

    def end() -> None:
        leave.set()
        thread.join()

    return end
