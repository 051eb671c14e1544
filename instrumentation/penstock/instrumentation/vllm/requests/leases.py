"""Prefill side: blocks of finished requests that wait for their reader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.instrumentation.core import constants as c


@dataclass(frozen=True, slots=True)
class Lease:
    """Blocks that a finished request keeps; times are wall clock.

    *to_reader*: until another engine has read them or the lease runs out; otherwise until the connector has saved them.
    """

    request_id: str
    blocks: int
    start_ns: int
    to_reader: bool = True

    def closed_fields(self, ending: int, connector: str) -> dict[str, Any]:
        """Return the fields of ``LeaseClosed``; *ending* is a ``LEASE_ENDING_*``."""
        return {
            "ending": ending,
            "start_time_unix_nano": self.start_ns,
            "blocks": self.blocks,
            "connector": connector,
        }


class Leases:
    """The leases of one scheduler; its thread changes them, any thread may read the totals."""

    def __init__(self) -> None:
        self._open: dict[str, Lease] = {}
        self._expired: set[str] = set()

    def get(self, request_id: str) -> Lease | None:
        """Return the open lease of a request."""
        return self._open.get(request_id)

    def begin(self, lease: Lease) -> None:
        """Open a lease."""
        self._open[lease.request_id] = lease

    def on_expired(self, request_id: str) -> None:
        """Record that a rank let the lease run out; the blocks are freed when all ranks have reported."""
        if request_id in self._open:
            self._expired.add(request_id)

    def end(self, request_id: str) -> tuple[Lease, int] | None:
        """Close a lease and return it with its ending, or None if there is none."""
        lease = self._open.pop(request_id, None)
        if lease is None:
            return None
        if request_id in self._expired:
            self._expired.remove(request_id)
            return lease, c.LEASE_ENDING_EXPIRED
        return lease, c.LEASE_ENDING_READ

    def totals(self) -> tuple[int, int, int]:
        """Return how many wait for a reader, their blocks, and the oldest start (0 if there is none), from any thread."""
        leases = [lease for lease in self._open.copy().values() if lease.to_reader]
        return (
            len(leases),
            sum(lease.blocks for lease in leases),
            min((lease.start_ns for lease in leases), default=0),
        )
