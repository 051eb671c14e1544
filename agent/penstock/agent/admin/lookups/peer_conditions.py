"""What an agent sees of a peer now: it hangs, fails, is slower than in its own hour before, or is quarantined. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent import limits
from penstock.proto.names import NANOS
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_CLOSED

if TYPE_CHECKING:
    from penstock.agent.metrics import DurationWindow, DurationWindows, PeerWindows


class Condition(NamedTuple):
    """What is wrong now.

    Attributes:
        severity: orders peers of one condition, the worst highest.
        reason: in words; empty for OK and QUARANTINED, which the status explains.
        since: by the engine's clock, nanoseconds; 0 for not known.

    """

    condition: admin.PeerCondition
    severity: float = 0.0
    reason: str = ""
    since: int = 0


@dataclass(slots=True)
class Present:
    """What an engine's last snapshots and acknowledged orders say about a peer; times in nanoseconds, 0 for none.

    Attributes:
        quarantine: ``QuarantineState``.

    """

    in_flight: int = 0
    oldest_in_flight: int = 0
    deferred: int = 0
    oldest_deferred: int = 0
    quarantine: int = 0

    @property
    def is_quarantined(self) -> bool:
        """Whether loads from it are kept back, all or all but a probe."""
        return self.quarantine > QUARANTINE_STATE_CLOSED


def peer_condition(present: Present, windows: PeerWindows | None, now: int, tried: int = 0) -> Condition:
    """Return what is wrong with a peer at *now*, by its engine's clock, nanoseconds.

    A peer in quarantine is not tried: what was before tells nothing of it, but for requests that still wait.

    Args:
        tried: when the newest attempt ended, as far as the counters know; 0 for never.

    """
    hanging = _hanging(present, windows, now)
    if hanging is not None:
        return hanging
    if present.is_quarantined:
        return Condition(admin.PEER_CONDITION_QUARANTINED)
    if windows is not None:
        wrong = (
            _failing(windows, now) or _slow("waits", windows.waits) or _slow("transfers", windows.transfers)
        )
        if wrong is not None:
            return wrong
    newest = () if windows is None else (windows.transfers.last_15_minutes, windows.waits.last_15_minutes)
    used = present.in_flight or present.deferred or any(each.count for each in newest)
    if used or now - tried < limits.UNTRIED_SECONDS * NANOS:
        return Condition(admin.PEER_CONDITION_OK)
    return Condition(admin.PEER_CONDITION_IDLE)


def _failing(windows: PeerWindows, now: int) -> Condition | None:
    """Return the condition if loads failed just now, or none has succeeded since the last one failed."""
    count, since = windows.failures_last_minute, windows.unanswered_since
    if count:
        reason = f"{count} failure{'' if count == 1 else 's'} in the last minute"
        return Condition(admin.PEER_CONDITION_FAILING, count, reason, since)
    if windows.unanswered:
        ago = seconds_text((now - windows.unanswered) / 1e9)
        reason = f"no transfer has succeeded since the last load failed, {ago} ago"
        return Condition(admin.PEER_CONDITION_FAILING, 0.0, reason, since)
    return None


def _hanging(present: Present, windows: PeerWindows | None, now: int) -> Condition | None:
    """Return the condition if a transfer or a request waits for longer than usual."""
    if not (present.in_flight or present.deferred):
        return None
    transfers, waits = (None, None) if windows is None else (_usual(windows.transfers), _usual(windows.waits))
    oldest = (
        ("a transfer is in flight for", present.in_flight, present.oldest_in_flight, transfers),
        ("a request waits for", present.deferred, present.oldest_deferred, waits),
    )
    worst: Condition | None = None
    for what, count, begun, usual in oldest:
        age = (now - begun) / 1e9
        least = (
            limits.HANGS_SECONDS
            if usual is None
            else max(limits.HANGS_SECONDS, limits.HANGS_TIMES * usual.p99)
        )
        if count and begun and age > least and (worst is None or age > worst.severity):
            compared = "" if usual is None else f"; usually up to {seconds_text(usual.p99)}"
            reason = f"{what} {seconds_text(age)}{compared}"
            worst = Condition(admin.PEER_CONDITION_HANGING, age, reason, begun)
    return worst


def _usual(windows: DurationWindows) -> DurationWindow | None:
    """Return the window that says what is usual; None for too few durations."""
    for window in (windows.hour_before, windows.last_15_minutes):
        if window.count >= limits.USUAL_COUNT:
            return window
    return None


def _slow(what: str, windows: DurationWindows) -> Condition | None:
    """Return the condition if the newest durations are longer than those of the hour before."""
    present, since = windows.last_minute, "in the last minute"
    if present.count < limits.MEDIAN_COUNT:
        present, since = windows.last_15_minutes, "in the last 15 minutes"
    before = windows.hour_before
    if present.count < limits.MEDIAN_COUNT:
        return None
    if before.count < limits.USUAL_COUNT:
        if present.p50 < limits.SLOW_ANYWAY_SECONDS:
            return None
        reason = f"p50 of {what} {seconds_text(present.p50)} {since}, no hour before to compare with"
        return Condition(admin.PEER_CONDITION_SLOW, 1.0, reason)
    for name, after, usual, least in (
        ("p50", present.p50, before.p50, limits.MEDIAN_COUNT),
        ("p99", present.p99, before.p99, limits.TAIL_COUNT),
    ):
        if (
            present.count >= least
            and after > limits.SLOW_TIMES * usual
            and after - usual > limits.SLOW_SECONDS
        ):
            reason = (
                f"{name} of {what} {seconds_text(after)} {since}, {seconds_text(usual)} in the hour before"
            )
            return Condition(admin.PEER_CONDITION_SLOW, after / usual, reason)
    return None


def seconds_text(seconds: float) -> str:
    """Return a duration: ``12.9 s``, ``54 ms``."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
