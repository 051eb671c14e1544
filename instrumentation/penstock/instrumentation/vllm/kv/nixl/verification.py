"""The verification of KV transfers on one NIXL worker: it carries out the scheduler's orders at the end of a step."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from penstock.instrumentation.vllm.kv.integrity import (
    BlockDigests,
    KvLayout,
    LoadCheck,
    check_load,
    layout_of,
)
from penstock.instrumentation.vllm.messages import CheckedLoad, DigestOrder, RankDigest, VerifyOrder

PENDING: Final = 1_024
"""Loads that are compared when they have ended, and reports that wait for the scheduler's next step."""

_SPLIT: Final = "context or pipeline parallelism splits the blocks"


class WorkerVerification:
    """What is digested and compared on one rank. On the worker's thread.

    Attributes:
        digests: computed, and not reported yet.
        checked: loads that were compared, and not reported yet.

    """

    def __init__(self) -> None:
        self.digests: deque[RankDigest] = deque(maxlen=PENDING)
        self.checked: deque[CheckedLoad] = deque(maxlen=PENDING)
        self._orders: tuple[DigestOrder, ...] = ()
        self._loads: dict[str, VerifyOrder] = {}
        self._layout: KvLayout | None = None

    @property
    def has_news(self) -> bool:
        """Whether there is something to report."""
        return bool(self.digests or self.checked)

    def take_orders(self, metadata: Any) -> None:
        """Take the orders on a step's *metadata*, if it has any."""
        self._orders = getattr(metadata, "penstock_digest", ())
        for order in getattr(metadata, "penstock_verify", ()):
            if len(self._loads) >= PENDING:
                self._loads.pop(next(iter(self._loads)))
            self._loads[order.request_id] = order

    def loads_of(self, worker: Any) -> dict[str, Any] | None:
        """Return vLLM's ReqMeta of the loads that are to be compared; None without any."""
        if not self._loads:
            return None
        return {request_id: worker._recving_metadata.get(request_id) for request_id in self._loads}

    def pop(self, request_id: str) -> VerifyOrder:
        """Return the order about a load that has ended, and forget it."""
        return self._loads.pop(request_id)

    def check(self, worker: Any, order: VerifyOrder, meta: Any) -> LoadCheck:
        """Compare the blocks of a load that has ended with the digest of *order*."""
        return check_load(order.digest, self._layout_of(worker), meta.local_block_ids)

    def add(self, request_id: str, check: LoadCheck) -> None:
        """Report what a comparison has found."""
        self.checked.append(CheckedLoad(request_id, *check))

    def compute_digests(self, worker: Any) -> None:
        """Compute the digests that were ordered for this step."""
        if not self._orders:
            return
        orders, self._orders = self._orders, ()
        layout = self._layout_of(worker)
        for order in orders:
            if layout.problem or len(order.groups) != len(layout.groups):
                problem = layout.problem or "the KV cache groups are not those of the scheduler"
                self.digests.append(RankDigest(order.request_id, problem=problem))
                continue
            digests = BlockDigests(layout)
            groups = tuple(
                digests.compute(number, blocks).numpy().astype("<i8").tobytes()
                for number, blocks in enumerate(order.groups)
            )
            self.digests.append(
                RankDigest(order.request_id, layout.block_size, layout.total_heads, layout.heads, groups)
            )

    def _layout_of(self, worker: Any) -> KvLayout:
        if self._layout is None:
            self._layout = _layout(worker)
        return self._layout


def _layout(worker: Any) -> KvLayout:
    """Return the layout of a worker's KV caches."""
    if worker._has_mamba or worker._mixed_mem_types or worker._physical_blocks_per_logical_kv_block != 1:
        return KvLayout(problem="a state that is not attention's, or blocks of two sizes, cannot be digested")
    if any(getattr(worker, f"{name}_size", 1) > 1 for name in ("dcp", "pcp", "pp")):
        return KvLayout(problem=_SPLIT)
    topology = worker.transfer_topo
    groups = worker.kv_cache_config.transfer_group_index_by_layer
    return layout_of(
        worker.device_kv_caches,
        {name: groups[name] for name in worker._layer_specs},
        block_size=worker.block_size,
        total_heads=topology.total_num_kv_heads,
        rank=topology.tp_rank,
        ranks=topology.tp_size if not topology.is_mla else 1,
    )
