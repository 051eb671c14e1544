"""What became of the loads and saves of connectors that are only known by their base interface: transfers and failures.

The workers say when each ended and which blocks were not loaded (``kv_observer.py``); whose blocks those are only the
scheduler knows, at this step. On the scheduler's thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv.base import observer as kv_observer
from penstock.instrumentation.vllm.messages import LoadFailure, LoadReason, peer_at
from penstock.instrumentation.vllm.recovery import rewind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.instrumentation.vllm.messages import BrokenBlocks, FinishedTransfer, WorkerReport
    from penstock.instrumentation.vllm.requests import SchedulerObserver

_NO_REASON: Final = LoadReason("", 0, c.FAILURE_MODE_LOAD, c.ERROR_TYPE_OTHER)
"""Of a connector that only says which blocks are missing."""


@dataclass(slots=True)
class _Open:
    """A load that has begun: *tokens* behind *local* ones; *spoiled* are the ranks that did not load all blocks, *reasons* why."""

    local: int
    tokens: int
    spoiled: set[int] = field(default_factory=set)
    reasons: dict[int, LoadReason] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Broken:
    """How many blocks a connector did not load; 0 is not known."""

    connector: str
    blocks: int = 0


class KvTransfers:
    """The loads and saves of one scheduler, as its workers report them."""

    def __init__(self, scheduler: Any, observer: SchedulerObserver) -> None:
        """Tell of those of *scheduler*; *observer* knows its requests."""
        self._scheduler = scheduler
        self._observer = observer
        self._open: dict[str, _Open] = {}

    def begins(self, request_id: str, local_tokens: int, tokens: int) -> None:
        """Note that a request loads *tokens* behind *local_tokens*."""
        self._open[request_id] = _Open(local_tokens, tokens)

    def ended(self, request_id: str) -> None:
        """Forget a load that has ended on all ranks, or whose request has left."""
        self._open.pop(request_id, None)

    def reported(self, reports: Iterable[WorkerReport]) -> list[LoadFailure]:
        """Emit what the workers say has ended or failed in this step; return the loads that failed."""
        failed: list[LoadFailure] = []
        loaded: list[str] = []
        for report in reports:
            for reason in report.reasons:
                if reason.request_id in self._open:
                    self._open[reason.request_id].reasons[reason.rank] = reason
            broken: dict[tuple[str, int], _Broken] = {}
            for each in report.broken:
                self._claim(each, broken)
            for move in report.moves:
                failed.extend(self._move(move, broken.pop((move.request_id, move.rank), None)))
                if move.loads and not move.waits:
                    loaded.append(move.request_id)
            # Blocks may fail steps before their load has ended.
            for (request_id, rank), blocks in broken.items():
                failed.extend(self._failed(request_id, rank, blocks))
        for request_id in loaded:
            self.ended(request_id)
        return failed

    def _move(self, move: FinishedTransfer, broken: _Broken | None) -> Iterator[LoadFailure]:
        record = self._observer.record(move.request_id)
        load = self._open.get(move.request_id) if move.loads else None
        spoiled = load is not None and move.rank in load.spoiled
        peer = peer_at(move.place, record.peer if record is not None and move.loads else None)
        told = move._replace(failed=move.failed or spoiled)
        kv_observer.emit(told, peer.address, peer.engine_id)
        if record is not None:
            record.connector = move.connector
        if broken is not None:
            yield from self._failed(move.request_id, move.rank, broken, move)
        elif move.failed:
            yield from self._failed(move.request_id, move.rank, _Broken(move.connector), move)

    def _failed(
        self, request_id: str, rank: int, broken: _Broken, move: FinishedTransfer | None = None
    ) -> Iterator[LoadFailure]:
        """Emit a load that failed on a rank; *move* if it has ended there."""
        record = self._observer.record(request_id)
        load = self._open.get(request_id)
        reason = load.reasons.get(rank, _NO_REASON) if load is not None else _NO_REASON
        place = move.place if move is not None else ""
        peer = peer_at(place, record.peer if record is not None else None)
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
            "start_time_unix_nano": move.start_ns if move is not None else 0,
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

    def _claim(self, broken: BrokenBlocks, claims: dict[tuple[str, int], _Broken]) -> None:
        """Add to *claims* how many of the blocks each load has to do without, under "" those that belong to none."""
        left = set(broken.blocks)
        sizes = rewind.block_sizes(self._scheduler)
        for request_id, load in self._open.items():
            if request_id not in self._scheduler.requests:
                continue
            groups = self._scheduler.kv_cache_manager.get_block_ids(request_id)
            own: set[int] = set()
            for blocks, size in zip(groups, sizes, strict=True):
                end = -(-(load.local + load.tokens) // size)
                own |= broken.blocks.intersection(blocks[load.local // size : end])
            if own:
                load.spoiled.add(broken.rank)
                claims[request_id, broken.rank] = _Broken(broken.connector, len(own))
                left -= own
        if left:
            # Their request has left.
            claims["", broken.rank] = _Broken(broken.connector, len(left))
