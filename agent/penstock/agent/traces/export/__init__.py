"""From finished spans to an OTLP backend, with a cursor in the journal."""

from __future__ import annotations

from penstock.agent.traces.export.otlp_config import ExportSettings
from penstock.agent.traces.export.status import ExportStatus, probe_endpoint

__all__ = [
    "ExportSettings",
    "ExportStatus",
    "probe_endpoint",
]
