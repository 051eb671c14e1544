"""The daemon's part of ``agentctl status``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.agent.ingest import ContractViolations
from penstock.agent.traces.export import ExportStatus

if TYPE_CHECKING:
    from penstock.agent.daemon.config import Config
    from penstock.agent.daemon.health import Health
    from penstock.agent.ingest import LossDetector
    from penstock.agent.server.http_server import HttpServer
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
