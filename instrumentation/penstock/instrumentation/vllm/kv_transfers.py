"""What became of the loads and saves of connectors that are only known by their base interface: transfers and failures.

The workers say when each ended and which blocks were not loaded (``kv_observer.py``); whose blocks those are only the
scheduler knows, at this step. On the scheduler's thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.instrumentation import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm import kv_observer, rewind
from penstock.instrumentation.vllm.kv_moves import peer_at
from penstock.instrumentation.vllm.reports import LoadFailure

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.instrumentation.vllm.kv_moves import BrokenBlocks, KvMove
    from penstock.instrumentation.vllm.reports import WorkerReport
    from penstock.instrumentation.vllm.scheduler_observer import SchedulerObserver


@dataclass(slots=True)
class _Open:
    """A load that has begun: *tokens* behind *local* ones.

    *broken* are the blocks that each rank did not load.
    """

    local: int
    tokens: int
    broken: dict[int, int] = field(default_factory=dict)


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
        """Emit what the workers say has ended in this step; return the loads that failed."""
        failed: list[LoadFailure] = []
        loaded: list[str] = []
        for report in reports:
            unclaimed = [broken for each in report.broken if (broken := self._claim(each)) is not None]
            for move in report.moves:
                failed.extend(self._move(move))
                if move.loads and not move.waits:
                    loaded.append(move.request_id)
            for broken in unclaimed:
                self._unclaimed(broken)
        for request_id in loaded:
            self.ended(request_id)
        return failed

    def _move(self, move: KvMove) -> Iterator[LoadFailure]:
        record = self._observer.record(move.request_id)
        peer = peer_at(move.place, record.peer if record is not None and move.loads else None)
        load = self._open.get(move.request_id) if move.loads else None
        broken = load.broken.get(move.rank, 0) if load is not None else 0
        told = move._replace(failed=move.failed or bool(broken))
        kv_observer.emit(told, peer.address, peer.engine_id)
        if record is not None:
            record.connector = move.connector
        if not told.failed:
            return
        fields = _failure_fields(move.connector, move.direction) | {
            "peer": peer.fields(),
            "start_time_unix_nano": move.start_ns,
            "remote_request_id": record.remote_request_id if record is not None and not move.place else "",
            "attempt": record.present_attempt if record is not None else 1,
        }
        if broken:
            fields["blocks"] = broken
        _emit(fields, move.rank, move.request_id)
        if move.loads:
            yield LoadFailure(move.request_id, c.FAILURE_MODE_LOAD, c.ERROR_TYPE_OTHER, peer, move.rank)

    def _claim(self, broken: BrokenBlocks) -> BrokenBlocks | None:
        """Note on each load how many of its blocks are *broken*; return those that belong to none, or None."""
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
                load.broken[broken.rank] = load.broken.get(broken.rank, 0) + len(own)
                left -= own
        return broken._replace(blocks=frozenset(left)) if left else None

    def _unclaimed(self, broken: BrokenBlocks) -> None:
        """Tell of blocks that no load here waits for any more: their request has left."""
        fields = _failure_fields(broken.connector, c.DIRECTION_RECEIVE) | {
            "peer": peer_at("", None).fields(),
            "blocks": len(broken.blocks),
        }
        _emit(fields, broken.rank, "")


def _failure_fields(connector: str, direction: int) -> dict[str, Any]:
    return {
        "channel": c.CHANNEL_KV,
        "connector": connector,
        "direction": direction,
        "mode": c.FAILURE_MODE_LOAD,
        "error_type": c.ERROR_TYPE_OTHER,
    }


def _emit(fields: dict[str, Any], rank: int, request_id: str) -> None:
    if runtime.active:
        runtime.emit_event(
            "transfer_failure", fields, component=c.COMPONENT_WORKER, rank=rank, request_id=request_id
        )
