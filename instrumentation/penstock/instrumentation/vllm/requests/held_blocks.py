"""KV blocks that a scheduler keeps while no request computes with them, by what keeps them; leases of finished requests. Pure.

A lease is the prefill side's: the blocks of a finished request wait for their reader.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import constants as c

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.naming import Peer


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


@dataclass(frozen=True, slots=True)
class Holding:
    """The blocks of one request.

    Attributes:
        holder: ``BLOCK_HOLDER_*``.
        blocks: how many.
        start_ns: since when this holder has them, wall clock.
        peer: the other end of the load, where there is one.

    """

    holder: int
    blocks: int
    start_ns: int
    peer: Peer | None = None


@dataclass(frozen=True, slots=True)
class HeldGauge:
    """What one holder keeps because of one peer."""

    holder: int
    peer: Peer | None
    requests: int
    blocks: int
    oldest_start_ns: int


class HeldBlocks:
    """The held blocks of one scheduler; its thread changes them, any thread may read the gauges.

    Bounded by the scheduler's own requests: vLLM forgets a request when its blocks are free, and so does this.
    """

    def __init__(self) -> None:
        self._held: dict[str, Holding] = {}

    def begin(self, request_id: str, holding: Holding) -> None:
        """Record that a request's blocks are held; a load of it that is still under way stays the holder."""
        if holding.holder == c.BLOCK_HOLDER_LOAD or request_id not in self._held:
            self._held[request_id] = holding

    def peer(self, request_id: str) -> Peer | None:
        """Return the other end of the load that holds a request's blocks; None where there is none, or it is not known."""
        found = self._held.get(request_id)
        return found.peer if found is not None else None

    def on_pinned(self, request_id: str, now_ns: int) -> int:
        """Record that the load of a request was given up while its blocks may still be written to; return how many those are."""
        self._change(request_id, {c.BLOCK_HOLDER_LOAD, c.BLOCK_HOLDER_ABORTED}, c.BLOCK_HOLDER_PINNED, now_ns)
        found = self._held.get(request_id)
        return found.blocks if found is not None else 0

    def on_finished(self, request_id: str, now_ns: int) -> None:
        """Record that a request has ended; one that still has a load under way does not get rid of its blocks."""
        self._change(request_id, {c.BLOCK_HOLDER_LOAD}, c.BLOCK_HOLDER_ABORTED, now_ns)

    def _change(self, request_id: str, before: set[int], holder: int, now_ns: int) -> None:
        found = self._held.get(request_id)
        if found is not None and found.holder in before:
            self._held[request_id] = replace(found, holder=holder, start_ns=now_ns)

    def end(self, request_id: str) -> None:
        """Record that the blocks of a request are free, or that it may compute with them."""
        self._held.pop(request_id, None)

    def gauges(self) -> list[HeldGauge]:
        """Return what is held now, by holder and peer, from any thread."""
        groups: dict[tuple[int, Peer | None], HeldGauge] = {}
        for each in self._held.copy().values():
            key = (each.holder, each.peer)
            group = groups.get(key) or HeldGauge(*key, 0, 0, each.start_ns)
            groups[key] = HeldGauge(
                *key,
                group.requests + 1,
                group.blocks + each.blocks,
                min(group.oldest_start_ns, each.start_ns),
            )
        return list(groups.values())
