"""What a worker tells the scheduler about a step: it travels as the KV connector's own worker metadata.

vLLM pickles it in the worker, combines the ranks' with ``aggregate`` and hands it to the scheduler in
``KVConnectorOutput.kv_connector_worker_meta``. A connector that uses the field itself keeps its metadata as *inner*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.instrumentation.vllm.messages.load_reasons import LoadReason
    from penstock.instrumentation.vllm.messages.transfers import BrokenBlocks, FinishedTransfer
    from penstock.instrumentation.vllm.naming import Peer


@dataclass(frozen=True, slots=True)
class Culprit:
    """The peer whose trouble made a load from another one fail.

    *mode* (``FAILURE_MODE_*``) and *error_type* (``ERROR_TYPE_*``) are what counts against it, 0 for nothing.
    """

    peer: Peer
    mode: int = 0
    error_type: int = 0


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """A load of a request that failed on one rank: ``FAILURE_MODE_*``, ``ERROR_TYPE_*`` and the peer.

    *rehearsal*: a fault drill caused it. *culprit*: of mode ``collateral``, where it is known.
    """

    request_id: str
    mode: int
    error_type: int
    peer: Peer
    rank: int = 0
    rehearsal: bool = False
    culprit: Culprit | None = None


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """One step of one rank, or of several that were aggregated.

    Attributes:
        failures: loads that failed, in the order in which they did.
        began: when the first transfer of a request to be received began, wall clock in nanoseconds; told while it runs.
        expired: prefill side: requests whose lease ran out before everybody had read.
        inner: the connector's own metadata.
        pinned: loads that were ordered to be given up and have a transfer in flight: their blocks may be written to until
            vLLM reports them as received, whatever becomes of the request.
        moves: loads and saves that have ended, of a connector that does not tell of them itself.
        broken: blocks that such a connector did not load.
        reasons: why loads of such a connector have failed, where it says so; no later than that they have.

    """

    failures: tuple[LoadFailure, ...] = ()
    began: tuple[tuple[str, int], ...] = ()
    expired: tuple[str, ...] = ()
    inner: Any = None
    pinned: tuple[str, ...] = ()
    moves: tuple[FinishedTransfer, ...] = ()
    broken: tuple[BrokenBlocks, ...] = ()
    reasons: tuple[LoadReason, ...] = ()

    def __bool__(self) -> bool:
        return True

    def aggregate(self, other: Any) -> WorkerReport:
        """Combine with another rank's; the connectors' own are combined by themselves."""
        theirs = other if isinstance(other, WorkerReport) else WorkerReport(inner=other)
        if self.inner is None or theirs.inner is None:
            inner = self.inner if theirs.inner is None else theirs.inner
        else:
            inner = self.inner.aggregate(theirs.inner)
        return WorkerReport(
            self.failures + theirs.failures,
            self.began + theirs.began,
            self.expired + theirs.expired,
            inner,
            self.pinned + theirs.pinned,
            self.moves + theirs.moves,
            self.broken + theirs.broken,
            self.reasons + theirs.reasons,
        )


def find(metadata: Any) -> Iterator[WorkerReport]:
    """Yield the reports in a connector's worker metadata, those of a MultiConnector's children included."""
    if isinstance(metadata, WorkerReport):
        yield metadata
        return
    children = getattr(metadata, "metadata", None)
    if isinstance(children, tuple):
        for child in children:
            yield from find(child)
