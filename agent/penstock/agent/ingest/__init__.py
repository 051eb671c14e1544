"""Taking in what engines send."""

from penstock.agent.ingest.admission import Admission
from penstock.agent.ingest.losses import LossWatch
from penstock.agent.ingest.service import IngestService, Refusals

__all__ = ["Admission", "IngestService", "LossWatch", "Refusals"]
