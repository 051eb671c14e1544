"""Fault drills and operators' orders, which the feed pushes with every policy.

A drill only chooses which attempts a ``FaultDrill`` hits. The hooks raise the faults at the transfer library's boundary, so that
vLLM's own failure path runs, and every entry that results is marked ``rehearsal``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Final

from penstock.instrumentation.core import constants
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.rules import QuarantineOrder

SLOW: Final = 0
"""The wire's unspecified mode: the attempt is delayed and succeeds."""

MODES: Final = {
    constants.FAILURE_MODE_HANDSHAKE: "handshake",
    constants.FAILURE_MODE_SETUP: "setup",
    constants.FAILURE_MODE_TRANSFER: "transfer",
    constants.FAILURE_MODE_EXCEPTION: "exception",
    constants.FAILURE_MODE_NOTIFICATION: "notification",
    constants.FAILURE_MODE_LOAD: "load",
    constants.FAILURE_MODE_PROBE: "probe",
    SLOW: "slow",
}
"""The modes that a drill may have, and their names."""

_OF_EC: Final = frozenset(
    {
        constants.FAILURE_MODE_PROBE,
        constants.FAILURE_MODE_TRANSFER,
        constants.FAILURE_MODE_LOAD,
        SLOW,
    }
)
_NOT_OF_KV: Final = frozenset({constants.FAILURE_MODE_PROBE})

MAX_ACTIVE: Final = 16
MAX_VALID_NS: Final = 4 * 3600 * NANOS
MAX_DELAY_NS: Final = 60 * NANOS


class DrillRefusedError(ValueError):
    """A drill is not allowed here or out of bounds; the text names value and remedy."""


@dataclass(frozen=True, slots=True)
class Drill:
    """One fault drill, as the policy feed pushes it. Times in nanoseconds.

    Attributes:
        id: of the order.
        channel: ``CHANNEL_*``.
        mode: one of :data:`MODES`.
        rate: share of the attempts that are hit, in (0, 1].
        valid_for_ns: from its receipt.
        peer: ``host:port``; empty for all.
        delay_ns: before the fault is raised.

    """

    id: str
    channel: int
    mode: int
    rate: float
    valid_for_ns: int
    peer: str = ""
    delay_ns: int = 0


@dataclass(frozen=True, slots=True)
class Armed:
    """A drill that runs until *ends_ns* on the monotonic clock."""

    drill: Drill
    ends_ns: int


def check_bounds(drill: Drill) -> None:
    """Check a drill against the built-in bounds.

    Raises:
        DrillRefusedError: a field is out of bounds.

    """
    if drill.mode not in MODES:
        raise DrillRefusedError(
            f"drill {drill.id}: mode {drill.mode} cannot be rehearsed; use {', '.join(MODES.values())}"
        )
    of_channel = _OF_EC if drill.channel == constants.CHANNEL_EC else MODES.keys() - _NOT_OF_KV
    if drill.mode not in of_channel:
        kind = "the encoder cache" if drill.channel == constants.CHANNEL_EC else "KV"
        words = ", ".join(word for mode, word in MODES.items() if mode in of_channel)
        raise DrillRefusedError(
            f"drill {drill.id}: mode {MODES[drill.mode]} of {kind} cannot be rehearsed; use {words}"
        )
    if not 0 < drill.rate <= 1:
        raise DrillRefusedError(
            f"drill {drill.id}: rate {drill.rate} is not a share of the attempts; use one in (0, 1]"
        )
    if not 0 < drill.valid_for_ns <= MAX_VALID_NS:
        raise DrillRefusedError(
            f"drill {drill.id}: a drill ends by itself; give it a time of at most "
            f"{MAX_VALID_NS // NANOS} s, not {drill.valid_for_ns / NANOS:g} s",
        )
    if not 0 <= drill.delay_ns <= MAX_DELAY_NS or (drill.mode == SLOW and drill.delay_ns == 0):
        raise DrillRefusedError(
            f"drill {drill.id}: delay {drill.delay_ns / NANOS:g} s; use at most {MAX_DELAY_NS // NANOS} s, "
            f"and more than 0 s with mode {MODES[SLOW]}",
        )


class Drills:
    """The drills of this process.

    :meth:`replace` belongs to one thread. :meth:`hit` may be called from any, because polling, handshakes and
    notifications run on different ones; it reads one immutable tuple.
    """

    __slots__ = ("_allowed", "_armed", "_clock", "_random")

    def __init__(
        self,
        *,
        allowed: bool,
        random: Random | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Start with none; *allowed* is ``PENSTOCK_ALLOW_FAULTS=1``, *random* is drawn per attempt, *clock* is monotonic nanoseconds."""
        self._allowed = allowed
        self._random = random or Random()  # noqa: S311 (a share of attempts, not a secret)
        self._clock = clock
        self._armed: tuple[Armed, ...] = ()

    @property
    def active(self) -> tuple[Armed, ...]:
        """The drills that run now."""
        if not self._armed:
            return ()
        now = self._clock()
        return tuple(armed for armed in self._armed if now < armed.ends_ns)

    def replace(self, drills: Iterable[Drill]) -> None:
        """Replace the present drills by *drills*, the full state of the feed.

        A drill whose id is known keeps its end: a repeated push does not prolong it.

        Raises:
            DrillRefusedError: faults are not allowed in this engine, there are too many drills, or one is
                out of bounds; the present drills stay.

        """
        wanted = {drill.id: drill for drill in drills}
        if wanted and not self._allowed:
            raise DrillRefusedError("this engine refuses fault drills; start it with PENSTOCK_ALLOW_FAULTS=1")
        if len(wanted) > MAX_ACTIVE:
            raise DrillRefusedError(f"{len(wanted)} fault drills at once; use at most {MAX_ACTIVE}")
        for drill in wanted.values():
            check_bounds(drill)
        now = self._clock()
        ends = {armed.drill.id: armed.ends_ns for armed in self._armed}
        self._armed = tuple(
            Armed(drill, min(ends.get(drill.id, now + drill.valid_for_ns), now + drill.valid_for_ns))
            for drill in wanted.values()
        )

    def hit(self, channel: int, mode: int, peer: str) -> Drill | None:
        """Return the drill that hits this attempt, if one does.

        Call it once per attempt, where *mode* would happen. Each running drill that matches is drawn once, in the
        order of the push, until one hits.
        """
        for armed in self.active:
            drill = armed.drill
            matches = drill.channel == channel and drill.mode == mode and drill.peer in {"", peer}
            if matches and self._random.random() < drill.rate:
                return drill
        return None


@dataclass(frozen=True, slots=True)
class Orders:
    """The full state of the feed; the times in it count from *received_ns* (monotonic nanoseconds)."""

    quarantines: tuple[QuarantineOrder, ...] = ()
    drills: tuple[Drill, ...] = ()
    received_ns: int = 0

    def drills_at(self, now_ns: int) -> tuple[Drill, ...]:
        """Return the drills that still run at *now_ns* (monotonic), each with its remaining time."""
        passed = now_ns - self.received_ns
        return tuple(
            replace(drill, valid_for_ns=drill.valid_for_ns - passed)
            for drill in self.drills
            if drill.valid_for_ns > passed
        )


NO_ORDERS: Final = Orders()
