"""How many requests came, how many of them were to load KV, and how many of these loaded none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.proto.v1.snapshot_pb2 import Progress


@dataclass(slots=True)
class RequestCounts:
    """Counts since the process began, without the time of a pause; the scheduler's thread changes them.

    Attributes:
        requests: requests that arrived.
        to_load: those whose ``kv_transfer_params`` say that another engine has computed the prompt.
        unloaded: of these, those that ended without a load that was begun, refused or failed.

    """

    requests: int = 0
    to_load: int = 0
    unloaded: int = 0

    def on_arrived(self, *, to_load: bool) -> None:
        """Count a request."""
        self.requests += 1
        self.to_load += to_load

    def fill(self, progress: Progress) -> None:
        """Add the counts. Any thread."""
        progress.requests = self.requests
        progress.requests_to_load = self.to_load
        progress.unloaded_requests = self.unloaded
