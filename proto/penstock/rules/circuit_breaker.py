"""The circuit breaker of one peer: closed, open, half-open (``peerQuarantine``).

It knows one peer only; :mod:`penstock.rules.quarantine` holds the circuit breakers of all peers and
the rules between them. Times are monotonic nanoseconds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from penstock.proto import constants
from penstock.proto.names import NANOS
from penstock.rules.field_bounds import FAILURE_BOUNDS, PERCENT_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.rules.policy import PeerQuarantine

# Failures that are not the peer's: another request's, our own library's, a reader that came too late or not at all, an
# evicted item, a wrong address: the engine that has it is healthy, and others read from it.
_INNOCENT_MODES: Final = frozenset(
    {
        constants.FAILURE_MODE_COLLATERAL,
        constants.FAILURE_MODE_RELEASE,
        constants.FAILURE_MODE_LATE_READ,
        constants.FAILURE_MODE_EXPIRED,
    },
)
_INNOCENT_ERROR_TYPES: Final = frozenset({constants.ERROR_TYPE_EVICTED, constants.ERROR_TYPE_WRONG_ENGINE})


class BreakerState(IntEnum):
    """``QuarantineState`` of the wire: every load passes, none passes, one probe passes."""

    CLOSED = 1
    OPEN = 2
    HALF_OPEN = 3


@dataclass(frozen=True, slots=True)
class Rules:
    """``peerQuarantine`` in force: *failures* within *window* open a circuit for *duration*.

    Raises:
        ValueError: a value is out of bounds.

    """

    failures: int = 5
    window_ns: int = 30 * NANOS
    duration_ns: int = 60 * NANOS
    max_peers_percent: int = 50

    @classmethod
    def from_policy(cls, policy: PeerQuarantine) -> Rules:
        """Return the rules of a policy; a field that it does not set has the default of this class."""
        default = cls()
        return cls(
            failures=default.failures if policy.failures is None else policy.failures,
            window_ns=default.window_ns if policy.window is None else round(policy.window * NANOS),
            duration_ns=default.duration_ns if policy.duration is None else round(policy.duration * NANOS),
            max_peers_percent=(
                default.max_peers_percent if policy.max_peers_percent is None else policy.max_peers_percent
            ),
        )

    def __post_init__(self) -> None:
        least, most = FAILURE_BOUNDS
        if not least <= self.failures <= most:
            raise ValueError(f"peerQuarantine.failures is {self.failures}; use {least:g} to {most:g}")
        if self.window_ns <= 0 or self.duration_ns <= 0:
            raise ValueError(
                f"peerQuarantine: window {self.window_ns / NANOS:g} s, duration {self.duration_ns / NANOS:g} s; "
                "both must be more than 0 s",
            )
        least, most = PERCENT_BOUNDS
        if not least <= self.max_peers_percent <= most:
            raise ValueError(
                f"peerQuarantine.maxPeersPercent is {self.max_peers_percent}; use {least:g} to {most:g}"
            )


@dataclass(frozen=True, slots=True)
class PeerFailure:
    """A failed attempt: its ``FailureMode`` and ``ErrorType`` (:mod:`penstock.proto.constants`).

    A wait for a start that another peer delayed is collateral.
    """

    mode: int
    error_type: int
    rehearsal: bool = False

    @property
    def conclusive(self) -> bool:
        """Whether one such failure opens the circuit: the two ends are incompatible."""
        return self.error_type == constants.ERROR_TYPE_INCOMPATIBLE and self.mode not in _INNOCENT_MODES

    @property
    def counts(self) -> bool:
        """Whether it counts against the peer."""
        return self.mode not in _INNOCENT_MODES and self.error_type not in _INNOCENT_ERROR_TYPES


@dataclass(frozen=True, slots=True)
class Admit:
    """Whether a request may load from its peer.

    Attributes:
        remote: whether it may.
        probe: number of the probe that decides about a half-open circuit, to report with its result; 0 for others.
        reason: why it may not (a word); ``probe`` for the probe, else empty.

    """

    remote: bool
    probe: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Counted:
    at: int
    rehearsal: bool
    deadline: bool


class CircuitBreaker:
    """One peer's circuit breaker. Belongs to one thread.

    - closed → open after ``failures`` in ``window``, or one incompatible handshake.
    - open → half-open with the first request after ``duration``: that request is the probe. An incompatible peer is
      not probed; its circuit closes when its engine id changes. An incompatible peer without a known
      engine id is probed like others.
    - half-open → closed or open by the probe's result; of the others' results only an incompatibility matters. A
      probe without a result for a further ``duration`` is given up, and the next request probes.

    Slowness alone never opens it: transfers that our own deadline ended (mode ``timeout``) count only while no transfer
    succeeds.
    """

    __slots__ = (
        "_counted",
        "_incompatible_id",
        "began",
        "channel",
        "engine_id",
        "probe",
        "reason",
        "rehearsal",
        "seen",
        "state",
    )

    def __init__(self) -> None:
        self.state = BreakerState.CLOSED
        self.reason = ""
        self.rehearsal = False
        self.engine_id = ""
        self.channel = 0
        self.began = 0
        self.seen = 0
        self.probe = 0
        self._incompatible_id = ""
        self._counted: deque[_Counted] = deque()

    @property
    def permanent(self) -> bool:
        """Open until the engine id changes."""
        return self._incompatible_id != ""

    def until(self, rules: Rules) -> int | None:
        """Return when the next probe is admitted; None for never and for a closed circuit."""
        if self.state is BreakerState.CLOSED or self.permanent:
            return None
        return self.began + rules.duration_ns

    def learn_engine_id(self, engine_id: str, *, asked: bool) -> None:
        """Learn the peer's engine id; a new one in a request (*asked*) ends an incompatibility.

        Reports come late and may name an engine that is gone, so they only fill in an unknown id.
        """
        if not engine_id or (self.engine_id and not asked):
            return
        if self.permanent and engine_id != self._incompatible_id:
            self.close("engine_id_changed")
        self.engine_id = engine_id

    def admit(self, rules: Rules, now: int, numbers: Iterator[int]) -> Admit:
        """Decide about one request; *numbers* gives a probe its number."""
        if self.state is BreakerState.CLOSED:
            return Admit(remote=True)
        until = self.until(rules)
        if until is None or now < until:
            return Admit(
                remote=False, reason="probing" if self.state is BreakerState.HALF_OPEN else self.reason
            )
        self.reason = "probe_timeout" if self.state is BreakerState.HALF_OPEN else "expired"
        self.state = BreakerState.HALF_OPEN
        self.began = now
        self.probe = next(numbers)
        return Admit(remote=True, probe=self.probe, reason="probe")

    def succeeded(self, probe: int) -> None:
        """Apply a successful load; *probe* is the number that its :class:`Admit` gave."""
        if self.state is BreakerState.CLOSED:
            self._counted = deque(each for each in self._counted if not each.deadline)
        elif self._decides(probe):
            self.close("probe_ok")

    def failed(self, failure: PeerFailure, engine_id: str, probe: int, rules: Rules, now: int) -> str:
        """Apply a failed load; return the reason to open the circuit now, or an empty string."""
        if failure.conclusive and engine_id in {"", self.engine_id}:
            known = self.state is BreakerState.OPEN and self.reason == "incompatible"
            return "" if known else "incompatible"
        if self._decides(probe):
            if failure.counts:
                return "probe_failed"
            self.began = now - rules.duration_ns  # inconclusive: the next request probes
            return ""
        if self.state is not BreakerState.CLOSED or not failure.counts:
            return ""
        self._counted.append(
            _Counted(now, failure.rehearsal, deadline=failure.mode == constants.FAILURE_MODE_TIMEOUT)
        )
        while len(self._counted) > rules.failures or self._counted[0].at <= now - rules.window_ns:
            self._counted.popleft()
        return "failures" if len(self._counted) >= rules.failures else ""

    def open(self, reason: str, now: int, *, rehearsal: bool) -> None:
        """Open the circuit; it is a *rehearsal* if the last failure was one, or one that was counted."""
        self.rehearsal = rehearsal or (reason == "failures" and any(each.rehearsal for each in self._counted))
        self.state = BreakerState.OPEN
        self.reason = reason
        self.began = now
        self._incompatible_id = self.engine_id if reason == "incompatible" else ""

    def close(self, reason: str) -> None:
        """Close the circuit and forget the counted failures."""
        self.state = BreakerState.CLOSED
        self.reason = reason
        self._incompatible_id = ""
        self._counted.clear()

    def _decides(self, probe: int) -> bool:
        return self.state is BreakerState.HALF_OPEN and probe != 0 and probe == self.probe
