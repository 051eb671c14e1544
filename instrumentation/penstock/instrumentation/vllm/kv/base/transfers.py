"""The loads and saves of connectors known by vLLM's base interface: in the step being scheduled, and as the workers report them.

A worker reports finished transfers and the ids of blocks that were not loaded; only the scheduler knows, in the same step,
to which requests those blocks belong. Runs on the scheduler's thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.compat import child_connectors
from penstock.instrumentation.vllm.kv.base import connector_adapters
from penstock.instrumentation.vllm.kv.base.observer import emit_transfer
from penstock.instrumentation.vllm.messages import (
    LOADS,
    LOADS_MAX,
    SAVES,
    KvLoad,
    LoadFailure,
    LoadReason,
    peer_at,
    place_of,
    tier_place_of,
)
from penstock.instrumentation.vllm.recovery import rewind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.instrumentation.vllm.messages import BrokenBlocks, FinishedTransfer, WorkerReport
    from penstock.instrumentation.vllm.naming import Peer
    from penstock.instrumentation.vllm.requests import SchedulerObserver

_MATCHES_MAX: Final = 1_024
"""Matched requests that are kept until they get their blocks; the oldest is forgotten beyond that."""
_WITH_TIERS: Final = "OffloadingConnector"
_NO_REASON: Final = LoadReason("", 0, c.FAILURE_MODE_LOAD, c.ERROR_TYPE_OTHER)
"""The reason of a connector that reports missing blocks only."""


class KvStepLoads:
    """The loads and saves of one connector; a MultiConnector's belong to its children.

    Attributes:
        observes_tier: what its P2P tier moves is reported by itself (``kv/tiering``).

    """

    def __init__(self, connector: Any) -> None:
        """Collect the loads and saves of *connector*."""
        self.observes_tier = False
        self._by_tiers = any(kind.__name__ == _WITH_TIERS for kind in type(connector).__mro__)
        self._place = place_of([getattr(connector, "_cache_hit_source", None)])
        self._find_saves = connector_adapters.adapter_for(connector_adapters.SAVE_FINDERS, connector)
        self._waits: dict[str, bool] = {}
        self._loads: dict[str, KvLoad] = {}

    def on_match(self, request_id: str, *, waits: bool) -> None:
        """Record that the connector has KV for a request; *waits*: the request waits for the load (asynchronous)."""
        if request_id not in self._waits and len(self._waits) >= _MATCHES_MAX:
            del self._waits[next(iter(self._waits))]
        self._waits[request_id] = waits

    def on_load_allocated(self, request_id: str, tokens: int) -> None:
        """Record that a request got blocks for a load of *tokens*."""
        waits = self._waits.pop(request_id, False)
        if len(self._loads) < LOADS_MAX:
            self._loads[request_id] = KvLoad(request_id, tokens, waits, self._place)

    def set_source(self, request_id: str, sources: Iterable[Any]) -> None:
        """Set the place of a load from the connector's *sources* (vLLM's ``CacheHitSource``)."""
        load = self._loads.get(request_id)
        if load is None:
            return
        place = tier_place_of(sources, promoted=self.observes_tier) if self._by_tiers else place_of(sources)
        if load.place != place:
            self._loads[request_id] = load._replace(place=place)

    @staticmethod
    def place_in(connector: Any, request_id: str) -> str:
        """Return the place that a load of the step being scheduled comes from, by *connector* or a child of it; empty if unknown."""
        step = getattr(connector, "_penstock_step", None)
        load = step._loads.get(request_id) if step is not None else None
        if load is not None:
            return str(load.place)
        children = child_connectors(connector)
        return next(filter(None, (KvStepLoads.place_in(child, request_id) for child in children)), "")

    def on_finished(self, request_id: str) -> None:
        """Forget a finished request; its allocated loads still go to the workers."""
        self._waits.pop(request_id, None)

    def attach(self, connector: Any, metadata: Any, scheduled: Any) -> None:
        """Attach the loads and saves to the step's *metadata*, if there are any; *scheduled* is the SchedulerOutput."""
        if self._loads:
            loads, self._loads = tuple(self._loads.values()), {}
            setattr(metadata, LOADS, loads)
        if self._find_saves is not None:
            saves = tuple(islice(self._find_saves(connector, metadata, scheduled), LOADS_MAX))
            if saves:
                setattr(metadata, SAVES, saves)


@dataclass(slots=True)
class _OpenLoad:
    """An unfinished load of *tokens* after *local* ones; *failed_ranks* did not load all blocks, *reasons* by rank.

    *peer*: of a load that was given up.
    """

    local: int
    tokens: int
    peer: Peer | None = None
    failed_ranks: set[int] = field(default_factory=set)
    reasons: dict[int, LoadReason] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _MissingBlocks:
    """The number of blocks that a connector did not load; 0 is unknown."""

    connector: str
    blocks: int = 0


class KvTransfers:
    """The loads and saves of one scheduler, as reported by its workers."""

    def __init__(self, scheduler: Any, observer: SchedulerObserver) -> None:
        """Observe *scheduler*; *observer* has the records of its requests."""
        self._scheduler = scheduler
        self._observer = observer
        self._open: dict[str, _OpenLoad] = {}
        self._given_up: dict[str, _OpenLoad] = {}

    def on_load_started(self, request_id: str, local_tokens: int, tokens: int) -> None:
        """Record that a request loads *tokens* after *local_tokens*."""
        self._open[request_id] = _OpenLoad(local_tokens, tokens)

    def is_open(self, request_id: str) -> bool:
        """Return whether a load of a request has begun and not finished."""
        return request_id in self._open

    def on_load_finished(self, request_id: str) -> None:
        """Forget a load that is finished on all ranks, or whose request is finished."""
        self._open.pop(request_id, None)

    def on_given_up(self, request_id: str, peer: Peer) -> None:
        """Record that a load was given up, which is its failure: of its end only the transfer is told."""
        load = self._open.pop(request_id, None)
        if load is not None:
            load.peer = peer
            self._given_up[request_id] = load

    def forget(self, request_id: str) -> None:
        """Forget a load that was given up: its blocks are free."""
        self._given_up.pop(request_id, None)

    def on_reports(self, reports: Iterable[WorkerReport]) -> list[LoadFailure]:
        """Emit the transfers and failures that the workers report for this step; return the failed loads."""
        failed: list[LoadFailure] = []
        loaded: list[str] = []
        for report in reports:
            for reason in report.reasons:
                if reason.request_id in self._open:
                    self._open[reason.request_id].reasons[reason.rank] = reason
            broken: dict[tuple[str, int], _MissingBlocks] = {}
            for each in report.broken:
                self._assign_blocks(each, broken)
            for transfer in report.moves:
                failed.extend(
                    self._on_transfer(transfer, broken.pop((transfer.request_id, transfer.rank), None))
                )
                if transfer.loads and not transfer.waits:
                    loaded.append(transfer.request_id)
            # Blocks may fail steps before their load is finished.
            for (request_id, rank), blocks in broken.items():
                failed.extend(self._failed(request_id, rank, blocks))
        for request_id in loaded:
            self.on_load_finished(request_id)
        return failed

    def _on_transfer(
        self, transfer: FinishedTransfer, broken: _MissingBlocks | None
    ) -> Iterator[LoadFailure]:
        record = self._observer.record(transfer.request_id)
        given_up = self._given_up.get(transfer.request_id) if transfer.loads else None
        load = given_up or (self._open.get(transfer.request_id) if transfer.loads else None)
        failed_here = load is not None and transfer.rank in load.failed_ranks
        peer = (
            record.origin(transfer.place)
            if record is not None and transfer.loads
            else peer_at(transfer.place, None)
        )
        if given_up is not None and given_up.peer is not None:
            peer = given_up.peer
        result = transfer._replace(failed=transfer.failed or failed_here)
        emit_transfer(result, peer.address, peer.engine_id)
        if record is not None:
            record.connector = transfer.connector
        if given_up is not None:
            return
        if broken is not None:
            yield from self._failed(transfer.request_id, transfer.rank, broken, transfer)
        elif transfer.failed and transfer.loads:
            yield from self._failed(
                transfer.request_id, transfer.rank, _MissingBlocks(transfer.connector), transfer
            )

    def _failed(
        self, request_id: str, rank: int, broken: _MissingBlocks, transfer: FinishedTransfer | None = None
    ) -> Iterator[LoadFailure]:
        """Emit and yield a load that failed on a rank; *transfer* is None while it is unfinished there."""
        record = self._observer.record(request_id)
        load = self._open.get(request_id)
        reason = load.reasons.get(rank, _NO_REASON) if load is not None else _NO_REASON
        place = transfer.place if transfer is not None else ""
        peer = record.origin(place) if record is not None else peer_at(place, None)
        if record is not None:
            record.connector = broken.connector
        fields = {
            "channel": c.CHANNEL_KV,
            "connector": broken.connector,
            "direction": c.DIRECTION_RECEIVE,
            "mode": reason.mode,
            "error_type": reason.error_type,
            "error_class": reason.error_class,
            "error_text": reason.error_text,
            "peer": peer.fields(),
            "start_time_unix_nano": transfer.start_ns if transfer is not None else 0,
            "remote_request_id": record.remote_request_id if record is not None and not place else "",
            "attempt": record.present_attempt if record is not None else int(bool(request_id)),
        }
        if broken.blocks:
            fields["blocks"] = broken.blocks
        if runtime.active:
            runtime.emit_event(
                "transfer_failure",
                fields,
                component=c.COMPONENT_WORKER,
                rank=rank,
                request_id=request_id,
            )
        if request_id:
            yield LoadFailure(request_id, reason.mode, reason.error_type, peer, rank)

    def _assign_blocks(self, broken: BrokenBlocks, missing: dict[tuple[str, int], _MissingBlocks]) -> None:
        """Add to *missing* the number of *broken* blocks of each load; those of no load go under the empty id."""
        unassigned = set(broken.blocks)
        sizes = rewind.block_sizes(self._scheduler)
        for request_id, load in (*self._open.items(), *self._given_up.items()):
            if request_id not in self._scheduler.requests:
                continue
            groups = self._scheduler.kv_cache_manager.get_block_ids(request_id)
            own: set[int] = set()
            for blocks, size in zip(groups, sizes, strict=True):
                end = -(-(load.local + load.tokens) // size)
                own |= broken.blocks.intersection(blocks[load.local // size : end])
            if own:
                load.failed_ranks.add(broken.rank)
                if request_id not in self._given_up:
                    # Two reports of a rank come in one result, if its step failed and the engine goes on.
                    known = missing.get((request_id, broken.rank), _MissingBlocks(broken.connector))
                    missing[request_id, broken.rank] = _MissingBlocks(
                        broken.connector, known.blocks + len(own)
                    )
                unassigned -= own
        if unassigned:
            # Their request is finished.
            missing["", broken.rank] = _MissingBlocks(broken.connector, len(unassigned))
