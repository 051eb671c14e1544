"""What a worker reports about the KV loads and saves of a step: it travels in ``KVConnectorOutput.kv_connector_worker_meta``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.vllm.messages.rank_report import RankReport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.instrumentation.vllm.messages.load_reasons import LoadReason
    from penstock.instrumentation.vllm.messages.transfers import BrokenBlocks, FinishedTransfer
    from penstock.instrumentation.vllm.naming import Peer


@dataclass(frozen=True, slots=True)
class Culprit:
    """The peer whose failure made a load from another one fail.

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
class WorkerReport(RankReport[LoadFailure]):
    """One step of one rank, or of several that were aggregated.

    Attributes:
        began: when the first transfer of a request to be received began, wall clock in nanoseconds; reported while it runs.
        expired: prefill side: requests whose lease ran out before all readers had read.
        pinned: loads that were ordered to be given up and have a transfer in flight: their blocks may be written to until
            vLLM reports them as received, whatever becomes of the request.
        stuck: loads whose blocks have become pinned, by an order or by a refused release: only the gauges use it.
        moves: loads and saves that have ended, of a connector that does not report them itself.
        broken: blocks that such a connector did not load.
        handshakes: when a request came to wait behind other peers' handshakes, and when (True) the one that it waits for began.
        reasons: why loads of such a connector have failed, where it says so; no later than the failures themselves.

    """

    began: tuple[tuple[str, int], ...] = ()
    expired: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()
    stuck: tuple[str, ...] = ()
    moves: tuple[FinishedTransfer, ...] = ()
    broken: tuple[BrokenBlocks, ...] = ()
    reasons: tuple[LoadReason, ...] = ()
    handshakes: tuple[tuple[str, int, bool], ...] = ()


def find_reports(metadata: Any) -> Iterator[WorkerReport]:
    """Yield the reports in a connector's worker metadata, those of a MultiConnector's children included."""
    if isinstance(metadata, WorkerReport):
        yield metadata
        return
    children = getattr(metadata, "metadata", None)
    if isinstance(children, tuple):
        for child in children:
            yield from find_reports(child)
