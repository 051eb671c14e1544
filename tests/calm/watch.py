"""What is said all along: the causes of ``agentctl diagnose`` and the alerts of a real Prometheus; and what of it is wrong."""

from __future__ import annotations

import threading
import time
import urllib.error
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

import grpc
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2_grpc import AdminStub

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.prometheus.server import Prometheus

_LOOK_SECONDS: Final = 3.0
_CALL_SECONDS: Final = 30.0
_CONFIDENCES: Final = {
    admin.DIAGNOSIS_CONFIDENCE_POSSIBLE: "possible",
    admin.DIAGNOSIS_CONFIDENCE_LIKELY: "likely",
    admin.DIAGNOSIS_CONFIDENCE_CERTAIN: "certain",
}
CRITICAL: Final = "critical"

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause as it was first said: its sentence counts what goes on.

    Attributes:
        subject: the peer, or the first engine.
        lasts: said in the present tense.

    """

    kind: str
    subject: str
    confidence: str
    lasts: bool
    sentence: str = field(compare=False)

    @property
    def claims(self) -> bool:
        """Whether it says that something is wrong now, and more than that it may be."""
        return self.lasts and self.confidence != "possible"


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert that fires."""

    name: str
    severity: str
    summary: str = field(compare=False)


@dataclass(slots=True)
class Span:
    """When something was first and last said, in seconds since the phase began, and how often."""

    first: float
    last: float
    times: int = 1


@dataclass(slots=True)
class Said:
    """What was said in a phase.

    Attributes:
        true: the kinds of causes that are true in it.
        looks: how often the agent and Prometheus answered.

    """

    phase: str
    true: frozenset[str] = frozenset()
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    looks: dict[str, int] = field(default_factory=lambda: {"diagnose": 0, "alerts": 0})
    causes: dict[Cause, Span] = field(default_factory=dict)
    alerts: dict[Alert, Span] = field(default_factory=dict)

    def heard(self, causes: Iterable[Cause], alerts: Iterable[Alert], at: float) -> None:
        """Take what is said *at* so many seconds since the phase began."""
        for cause in causes:
            _extend(self.causes, cause, at)
        for alert in alerts:
            _extend(self.alerts, alert, at)

    def violations(self) -> list[str]:
        """Return what was said and must not be, as sentences."""
        wrong = [
            f"alert {alert.name} (critical) fired: {alert.summary}"
            for alert in self.alerts
            if alert.severity == CRITICAL
        ]
        wrong += [
            f"{cause.kind} ({cause.confidence}) about {cause.subject or 'nothing'} for {span.last - span.first:.0f} s:"
            f" {cause.sentence}"
            for cause, span in self.causes.items()
            if cause.claims and cause.kind not in self.true
        ]
        return wrong


def _extend(spans: dict[_T, Span], what: _T, at: float) -> None:
    if what in spans:
        spans[what].last = at
        spans[what].times += 1
    else:
        spans[what] = Span(at, at)


def causes_of(diagnosis: admin.Diagnosis) -> list[Cause]:
    """Return the causes of an answer."""
    return [
        Cause(
            cause.kind,
            cause.peer or (f"{cause.engines[0].server}/{cause.engines[0].engine}" if cause.engines else ""),
            _CONFIDENCES.get(cause.confidence, "unspecified"),
            not cause.HasField("until"),
            cause.sentence,
        )
        for cause in diagnosis.causes
    ]


class Watch:
    """Asks the agent at *address* and *prometheus* every few seconds; both may be away."""

    def __init__(self, address: str, prometheus: Prometheus) -> None:
        self._channel = grpc.insecure_channel(address)
        self._admin = AdminStub(self._channel)
        self._prometheus = prometheus
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.said: list[Said] = [Said("start")]

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._ending.set()
        self._thread.join(2 * _CALL_SECONDS)
        self._channel.close()
        self.begin("end")

    def begin(self, phase: str, true: frozenset[str] = frozenset()) -> Said:
        """Let what is said from now on be about a new phase; return what was said in the one before."""
        with self._lock:
            before = self.said[-1]
            before.seconds = time.monotonic() - before.began
            self.said.append(Said(phase, true))
            return before

    def _watch(self) -> None:
        while not self._ending.wait(_LOOK_SECONDS):
            with self._lock:
                said = self.said[-1]
            causes, alerts = self._causes(), self._alerts()
            with self._lock:
                # What was asked in one phase and answered in the next is about none.
                if said is self.said[-1]:
                    said.looks["diagnose"] += causes is not None
                    said.looks["alerts"] += alerts is not None
                    said.heard(causes or (), alerts or (), time.monotonic() - said.began)

    def _causes(self) -> list[Cause] | None:
        try:
            return causes_of(self._admin.Diagnose(admin.DiagnoseRequest(), timeout=_CALL_SECONDS))
        except grpc.RpcError:
            return None

    def _alerts(self) -> list[Alert] | None:
        try:
            data = self._prometheus.get("alerts")
        except (OSError, urllib.error.URLError, AssertionError, ValueError):
            return None
        return data and [
            Alert(
                row["labels"]["alertname"], row["labels"].get("severity", ""), row["annotations"]["summary"]
            )
            for row in data["alerts"]
            if row["state"] == "firing"
        ]
