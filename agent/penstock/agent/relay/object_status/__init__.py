"""The lease that one relay of a fleet holds, and the status of TransferPolicy objects that its holder writes."""

from __future__ import annotations

from penstock.agent.relay.object_status.lease import Lease
from penstock.agent.relay.object_status.open_status import open_lease, open_status

__all__ = ["Lease", "open_lease", "open_status"]
