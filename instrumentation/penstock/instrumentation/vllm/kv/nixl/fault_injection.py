"""Fault drills at NIXL's boundary: the faults are made below vLLM, so that vLLM's own failure path runs.

Which attempt is hit is chosen by ``drills.py``; here the attempt's hit is kept and played. Without a drill this is one
look at an empty tuple.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.resilience import SLOW, Drill, Drills
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv.nixl.transfer_table import CAPACITY, address
from penstock.instrumentation.vllm.naming import failure_modes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# The first that hits is played: a transfer can fail in one way only.
_OF_A_TRANSFER: Final = (c.FAILURE_MODE_TRANSFER, c.FAILURE_MODE_EXCEPTION, SLOW)


class RehearsedFaultError(RuntimeError):
    """What NIXL raises in a rehearsal."""

    def __init__(self, drill: Drill) -> None:
        super().__init__(f"rehearsal: fault drill {drill.id}")
        failure_modes.annotate(self, failure_modes.ExceptionNote(rehearsal=True))


@dataclass(frozen=True, slots=True)
class _Held:
    """A transfer that was hit; until *until_ns* (monotonic) it looks as if it went on."""

    drill: Drill
    until_ns: int


class FaultInjection:
    """The drills of one worker and the transfers that they hit.

    Drills are replaced by the worker's thread; any thread may ask, on which handshakes, transfers and notifications run.
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """Start with none; *clock* is monotonic nanoseconds."""
        settings = runtime.settings
        self._clock = clock
        self._drills = Drills(allowed=settings is not None and settings.allow_faults, clock=clock)
        self._held: dict[int, _Held] = {}
        self._stopped = threading.Event()
        self.armed = False

    @property
    def playing(self) -> bool:
        """Whether a transfer in flight is hit."""
        return bool(self._held)

    def replace(self, drills: Iterable[Drill]) -> None:
        """Put the full state of the drills in the place of the present one.

        Raises:
            DrillRefusedError: see :meth:`Drills.replace`.

        """
        self._drills.replace(drills)
        self.armed = bool(self._drills.active)

    def stop(self) -> None:
        """Let nobody wait any longer."""
        self._stopped.set()

    def hit(self, mode: int, peer: str) -> Drill | None:
        """Return the drill that hits this attempt at *mode* with *peer* (``host:port``), if one does."""
        if not self.armed or not runtime.active:
            return None
        if not self._drills.active:
            self.armed = False
            return None
        return self._drills.hit(c.CHANNEL_KV, mode, peer)

    def strike(self, drill: Drill) -> None:
        """Fail on the calling thread, after the delay of the drill or at :meth:`stop`.

        Raises:
            RehearsedFaultError: always.

        """
        self._stopped.wait(drill.delay_ns / 1e9)
        raise RehearsedFaultError(drill)

    def posted(self, handle: Any, peer: str) -> Drill | None:
        """Choose whether the transfer that is posted is hit; returns the drill that hits it."""
        for mode in _OF_A_TRANSFER:
            drill = self.hit(mode, peer)
            if drill is not None:
                if len(self._held) >= CAPACITY:
                    self._held.pop(next(iter(self._held)), None)
                self._held[address(handle)] = _Held(drill, self._clock() + drill.delay_ns)
                return drill
        return None

    def released(self, handle: Any) -> None:
        """Forget a handle that is let go."""
        self._held.pop(address(handle), None)

    def judge(self, handle: Any, state: str) -> str:
        """Return the state that vLLM is to see of a transfer whose state is *state*: a real error stays one.

        A transfer fails only after it has really ended: vLLM frees the blocks of one that failed.

        Raises:
            RehearsedFaultError: the drill is about an exception.

        """
        held = self._held.get(address(handle))
        if held is None or state != "DONE" or not runtime.active:
            return state
        if self._clock() < held.until_ns:
            return "PROC"
        if held.drill.mode == c.FAILURE_MODE_EXCEPTION:
            raise RehearsedFaultError(held.drill)
        return "ERR" if held.drill.mode == c.FAILURE_MODE_TRANSFER else state
