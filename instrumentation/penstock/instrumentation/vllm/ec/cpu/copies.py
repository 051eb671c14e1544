"""A worker's copies between the accelerator and this machine's memory, of an ``ECCPUConnector``, and the mixin over the ``ECCPUWorker`` that records them; on the worker's thread."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.ec import EcObserver, EcTransfer
from penstock.instrumentation.vllm.ec.cpu.loads import HOST

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.proto.v1.common_pb2 import Channel, Component
    from penstock.proto.v1.snapshot_pb2 import Snapshot

_NANOS_PER_MILLISECOND: Final = 1_000_000
_GUARD = guard("ec_cpu")


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy that was ordered; *start_ns* is the wall clock."""

    item: str
    nbytes: int
    start_ns: int
    request_id: str = ""


class Copies:
    """The copies of one worker, on its thread: loads by vLLM's transfer id (a number), saves by item. Bounded by vLLM's own tables."""

    def __init__(self, observer: EcObserver) -> None:
        """Report to *observer*."""
        self._observer = observer
        self._ordered: dict[int | str, Copy] = {}

    def on_loads(self, loads: Mapping[str, Any], block_size: int, items: Iterable[Any]) -> None:
        """Record the loads of a step, vLLM's (transfer id, blocks, shape) by item; *items*: as ``penstock_items``."""
        now = time.time_ns()
        requests = {each[0]: each[-1] for each in items}
        for item, (transfer_id, blocks, _) in loads.items():
            self._ordered[transfer_id] = Copy(item, len(blocks) * block_size, now, requests.get(item, ""))

    def on_save(self, item: str, nbytes: int) -> None:
        """Record a save that is about to be copied."""
        self._ordered[item] = Copy(item, nbytes, time.time_ns())

    def on_finished(self, finished: Iterable[tuple[Iterable[int | str], float]]) -> None:
        """Report copies that have ended: each batch's completions, and how many milliseconds it took on the device."""
        now = time.time_ns()
        for completions, milliseconds in finished:
            start_ns = now - int(milliseconds * _NANOS_PER_MILLISECOND)
            for key in completions:
                copy = self._ordered.pop(key, None)
                if copy is not None:
                    report = self._observer.received if isinstance(key, int) else self._observer.sent
                    report(EcTransfer(copy.item, HOST, start_ns, now, copy.nbytes, True, copy.request_id))

    def fill(self, snapshot: Snapshot) -> None:
        """Add the copies that have not ended; on the exporter's thread."""
        starts = [each.start_ns for each in self._ordered.copy().values()]
        if starts:
            snapshot.in_flight.add(
                channel=cast("Channel", c.CHANNEL_EC),
                connector=self._observer.connector,
                peer=HOST.fields(),
                count=len(starts),
                oldest_start_time_unix_nano=min(starts),
                component=cast("Component", self._observer.component),
                rank=self._observer.rank,
            )


class CpuWorkerMixin:
    """Reports copies when the device says that they have ended, which may be steps after they were ordered."""

    _penstock_copies: Copies | None = None
    _penstock_snapshot = ""

    # Set by vLLM's ECCPUWorker.
    _region: Any
    _is_save_rank: bool

    def start_load_caches(self, encoder_cache: Any, connector_metadata: Any) -> None:
        """Record the loads of a step that vLLM could order."""
        upstream: Any = super()
        upstream.start_load_caches(encoder_cache, connector_metadata=connector_metadata)
        copies = self._penstock_copies
        if copies is not None and connector_metadata.loads:
            with _GUARD:
                items = getattr(connector_metadata, "penstock_items", ())
                copies.on_loads(connector_metadata.loads, self._region.block_size_bytes, items)

    def save_caches(self, encoder_cache: Any, mm_hash: str, connector_metadata: Any) -> None:
        """Record a save that this rank makes."""
        upstream: Any = super()
        upstream.save_caches(encoder_cache, mm_hash, connector_metadata=connector_metadata)
        copies = self._penstock_copies
        if copies is not None and self._is_save_rank and mm_hash in connector_metadata.saves:
            with _GUARD:
                copies.on_save(mm_hash, encoder_cache[mm_hash].nbytes)

    def _collect_finished(self, inflight: Any, direction: str) -> list[Any]:
        upstream: Any = super()
        before = list(inflight)
        done: list[Any] = upstream._collect_finished(inflight, direction)
        copies = self._penstock_copies
        ended = len(before) - len(inflight)
        if copies is not None and ended:
            with _GUARD:
                # vLLM records these events anew with a later copy only.
                copies.on_finished(
                    (each.completions, each.start_event.elapsed_time(each.end_event))
                    for each in before[:ended]
                )
        return done

    def shutdown(self) -> None:
        """Stop contributing to the snapshot."""
        upstream: Any = super()
        with _GUARD:
            runtime.snapshots.remove(self._penstock_snapshot)
        upstream.shutdown()
