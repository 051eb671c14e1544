"""Steps of the time of day: what ends at a time must not live longer because the clock is set back."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from penstock.agent.policy.manifest import Manifest
    from penstock.agent.policy.store.interface import Clock

# A clock that is slewed drifts by 0.5 ms a second; what adds up to less is no step.
_LEAST_SECONDS = 0.5


def boot_seconds() -> float:
    """Return the seconds of a clock that is never set, and that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ClockSteps:
    """Notices that the time of day is set. One thread at a time."""

    def __init__(self, clock: Clock, steady: Clock) -> None:
        """Compare *clock*, seconds since the epoch, with *steady*, seconds that nothing sets."""
        self._clock = clock
        self._steady = steady
        self._ahead = clock() - steady()

    def look(self) -> float:
        """Return by how many seconds the clock was set forward since the last look; negative: back, 0: not set."""
        ahead = self._clock() - self._steady()
        step = ahead - self._ahead
        if abs(step) < _LEAST_SECONDS:
            return 0.0
        self._ahead = ahead
        return step


class PolicyEnds:
    """When policies end: at ``spec.expiresAt``, and no later by a clock that is set back after they came. Any thread."""

    def __init__(self, steps: ClockSteps) -> None:
        """Follow the *steps* of the clock."""
        self._steps = steps
        self._lock = threading.Lock()
        self._seen = 0
        # Seconds by which the clock was set back since the policy came; negative: forward.
        self._set_back: dict[tuple[str, datetime], float] = {}

    def keep(self, manifests: Iterable[Manifest]) -> None:
        """Begin with those of *manifests* that are new, and forget all others."""
        self.steps_seen()
        with self._lock:
            keys = [(each.name, each.spec.expires_at) for each in manifests]
            self._set_back = {
                (name, at): self._set_back.get((name, at), 0.0) for name, at in keys if at is not None
            }

    def steps_seen(self) -> int:
        """Look at the clock; return how often it was set so far."""
        with self._lock:
            if step := self._steps.look():
                self._seen += 1
                self._set_back = {key: seconds - step for key, seconds in self._set_back.items()}
            return self._seen

    def end_of(self, manifest: Manifest) -> datetime | None:
        """Return when *manifest* ends, by the time of day; None for never."""
        at = manifest.spec.expires_at
        if at is None:
            return None
        self.steps_seen()
        set_back = self._set_back.get((manifest.name, at), 0.0)
        return at - timedelta(seconds=set_back) if set_back > 0 else at
