"""What the daemon tells of itself: its part of ``GetStatus``, which ``agentctl doctor`` shows, and its own metrics."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from penstock.agent.daemon.health import REASONS
from penstock.agent.ingest import ContractViolations
from penstock.agent.metrics import Family, Sample
from penstock.agent.metrics.catalogue import from_agent as c
from penstock.agent.state import size_of
from penstock.agent.traces.export import ExportStatus
from penstock.proto.names import NANOS
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.daemon.config import Config
    from penstock.agent.daemon.health import Health
    from penstock.agent.ingest import LossDetector
    from penstock.agent.journal import Journal
    from penstock.agent.server.http_server import HttpServer
    from penstock.agent.state import StateDirectory
    from penstock.agent.traces.export.exporter import TraceExporter
    from penstock.proto.v1.admin_pb2 import AgentStatus

_MOST = (1 << 64) - 1


class StatusReport:
    """Fills the daemon's fields of a status.

    The parts are None until the daemon has started them; their fields stay empty.
    """

    def __init__(self, config: Config, health: Health) -> None:
        self._config = config
        self._health = health
        self._started_unix_nano = time.time_ns()
        self.listen_address = str(config.listen)
        self.violations = ContractViolations()
        self.losses: LossDetector | None = None
        self.http: HttpServer | None = None
        self.exporter: TraceExporter | None = None

    def export_status(self) -> ExportStatus:
        """Return where the trace export stands; an empty status before its start."""
        return ExportStatus() if self.exporter is None else self.exporter.status()

    def is_awaited(self, epoch: int) -> bool:
        """Return whether a source is away, and neither lost nor stopped yet."""
        return self.losses is not None and self.losses.is_awaited(epoch)

    def describe(self, status: AgentStatus) -> None:
        """Set the daemon's fields of *status*."""
        status.start_time.FromNanoseconds(self._started_unix_nano)
        status.listen_address = self.listen_address
        status.engines_expected = self._config.engines_expected
        status.messages_refused, status.last_refusal = self.violations.count, self.violations.last
        if self.losses is not None:
            status.acknowledged_entries_lost = min(self.losses.entries_lost, _MOST)
        if self.violations.count:
            status.last_refused.FromNanoseconds(self.violations.last_unix_nano)
        status.degraded = self._health.degraded()
        if self.http is not None:
            status.metrics_address = str(self.http.address)
        if self.exporter is not None:
            export = self.exporter.status()
            status.otlp_endpoint = export.endpoint
            status.otlp_error = export.error
            status.export_cursor = export.exported
            if export.oldest_unexported_unix_nano:
                status.oldest_unexported.FromNanoseconds(export.oldest_unexported_unix_nano)


_CONFIDENCE: Final = {
    admin.DIAGNOSIS_CONFIDENCE_CERTAIN: "certain",
    admin.DIAGNOSIS_CONFIDENCE_LIKELY: "likely",
}
_MOST_CONDITIONS: Final = 512
"""Series at most: a cause may be about each of many engines."""


class StateGauges:
    """The metric families of the state."""

    def __init__(self, place: StateDirectory, journal: Journal, health: Health) -> None:
        self._place = place
        self._journal = journal
        self._health = health

    def families(self) -> list[Family]:
        """Return their present values."""
        usage = self._journal.usage
        present = {trouble.reason for trouble in self._health.troubles()}
        families = [
            Family(c.DEGRADED, [Sample((reason,), reason in present) for reason in REASONS]),
            Family(c.SET_ASIDE, [Sample((kind,), count) for kind, count in self._health.set_aside().items()]),
            Family(c.RESTORED, [Sample((kind,), count) for kind, count in self._health.restored().items()]),
            Family(c.LOST_BATCHES, [Sample((), self._journal.lost_batches)]),
            Family(c.STATE_BYTES, [Sample((), size_of(self._place.path))]),
            Family(c.STATE_LIMIT, [Sample((), self._place.limit)]),
            Family(
                c.PRUNED,
                [
                    Sample(("false",), usage.unexported),
                    Sample(("true",), usage.pruned - usage.unexported),
                ],
            ),
        ]
        if usage.oldest_unix_nano:
            families.append(Family(c.LOG_OLDEST, [Sample((), usage.oldest_unix_nano / NANOS)]))
        return families


def condition_families(judgement: admin.Diagnosis | None) -> Iterator[Family]:
    """Yield the families of *judgement*: what has ended has no series, nor what another cause explains."""
    if judgement is None:
        return
    found = {
        labels: Sample(labels, 1)
        for cause in judgement.causes
        if not cause.HasField("until")
        for labels in _condition_labels(cause)
    }
    yield Family(c.CONDITION, list(found.values())[:_MOST_CONDITIONS])
    harmless = [
        Sample((key.server, key.engine), 1) for key in judgement.harmless_late_reads[:_MOST_CONDITIONS]
    ]
    yield Family(c.HARMLESS_LATE_READS, harmless)
    yield Family(c.JUDGED, [Sample((), judgement.at.ToNanoseconds() / NANOS)])


def _condition_labels(cause: admin.DiagnosedCause) -> Iterator[tuple[str, ...]]:
    confidence = _CONFIDENCE.get(cause.confidence, "possible")
    places = [(key.server, key.engine) for key in cause.engines] or [("", "")]
    for server, engine in places:
        yield cause.kind, server, engine, cause.peer, confidence
