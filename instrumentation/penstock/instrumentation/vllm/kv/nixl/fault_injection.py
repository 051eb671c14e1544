"""Injects fault drills at NIXL's interface, below vLLM, so that vLLM's own failure path runs.

``orders.Drills`` chooses the attempts; this module keeps the hit transfers and changes their states. Without a drill the
cost is one attribute test.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.orders import SLOW, Drill, Drills
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv.nixl.transfer_table import HANDLES_MAX, handle_key
from penstock.instrumentation.vllm.naming import failure_modes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# In order; a transfer fails by the first mode that hits.
_OF_A_TRANSFER: Final = (c.FAILURE_MODE_TRANSFER, c.FAILURE_MODE_EXCEPTION, SLOW)


class RehearsedFaultError(RuntimeError):
    """The exception that a drill injects."""

    def __init__(self, drill: Drill) -> None:
        super().__init__(f"drill {drill.id}")
        failure_modes.annotate(self, failure_modes.ExceptionNote(rehearsal=True))


@dataclass(frozen=True, slots=True)
class _Hit:
    """A transfer that a drill has hit; it appears in progress until *until_ns* (monotonic)."""

    drill: Drill
    until_ns: int


class FaultInjection:
    """The drills of one worker and the transfers that they hit.

    ``replace`` runs on the worker's thread; the other methods on any thread.
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """Start without drills; *clock* returns monotonic nanoseconds."""
        settings = runtime.settings
        self._clock = clock
        self._drills = Drills(allowed=settings is not None and settings.allow_faults, clock=clock)
        self._hits: dict[int, _Hit] = {}
        self._stopped = threading.Event()
        self.armed = False

    @property
    def has_hits(self) -> bool:
        """Whether a drill has hit a transfer in flight."""
        return bool(self._hits)

    def replace(self, drills: Iterable[Drill]) -> None:
        """Replace all drills.

        Raises:
            DrillRefusedError: see :meth:`Drills.replace`.

        """
        self._drills.replace(drills)
        self.armed = bool(self._drills.active)

    def stop(self) -> None:
        """End all delays at once."""
        self._stopped.set()

    def hit(self, mode: int, peer: str) -> Drill | None:
        """Return the drill that hits this attempt at *mode* with *peer* (``host:port``); None if none does."""
        if not self.armed or not runtime.active:
            return None
        if not self._drills.active:
            self.armed = False
            return None
        return self._drills.hit(c.CHANNEL_KV, mode, peer)

    def fail_after_delay(self, drill: Drill) -> None:
        """Block for the delay of the drill, or until :meth:`stop`, then raise.

        Raises:
            RehearsedFaultError: always.

        """
        self._stopped.wait(drill.delay_ns / 1e9)
        raise RehearsedFaultError(drill)

    def on_posted(self, handle: Any, peer: str) -> Drill | None:
        """Return the drill that hits the posted transfer, and keep the hit; None if none does."""
        for mode in _OF_A_TRANSFER:
            drill = self.hit(mode, peer)
            if drill is not None:
                if len(self._hits) >= HANDLES_MAX:
                    self._hits.pop(next(iter(self._hits)), None)
                self._hits[handle_key(handle)] = _Hit(drill, self._clock() + drill.delay_ns)
                return drill
        return None

    def delays(self, handle: Any) -> bool:
        """Return whether a drill makes this transfer slow."""
        hit = self._hits.get(handle_key(handle))
        return hit is not None and hit.drill.mode == SLOW

    def on_released(self, handle: Any) -> None:
        """Forget a released handle."""
        self._hits.pop(handle_key(handle), None)

    def apply(self, handle: Any, state: str) -> str:
        """Return the state that vLLM sees of a transfer in *state*; real errors are not changed.

        An injected failure appears only after the transfer is complete: vLLM frees the blocks of failed ones.

        Raises:
            RehearsedFaultError: the drill injects an exception.

        """
        hit = self._hits.get(handle_key(handle))
        if hit is None or state != "DONE" or not runtime.active:
            return state
        if self._clock() < hit.until_ns:
            return "PROC"
        if hit.drill.mode == c.FAILURE_MODE_EXCEPTION:
            raise RehearsedFaultError(hit.drill)
        return "ERR" if hit.drill.mode == c.FAILURE_MODE_TRANSFER else state
