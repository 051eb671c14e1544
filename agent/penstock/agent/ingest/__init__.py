"""Engine -> agent: check a message, commit it, acknowledge it."""

from __future__ import annotations

from penstock.agent.ingest.admission import Admission, SourceAdmission
from penstock.agent.ingest.loss_detector import SERVER_STOPPING, LossDetector, ServerStops
from penstock.agent.ingest.message_limits import ContractViolations
from penstock.agent.ingest.service import IngestService

__all__ = [
    "SERVER_STOPPING",
    "Admission",
    "ContractViolations",
    "IngestService",
    "LossDetector",
    "ServerStops",
    "SourceAdmission",
]
