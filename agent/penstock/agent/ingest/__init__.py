"""Taking in what engines send."""

from penstock.agent.ingest.admission import Admission
from penstock.agent.ingest.door import Door
from penstock.agent.ingest.losses import LossWatch
from penstock.agent.ingest.refusals import Refusals
from penstock.agent.ingest.service import IngestService

__all__ = ["Admission", "Door", "IngestService", "LossWatch", "Refusals"]
