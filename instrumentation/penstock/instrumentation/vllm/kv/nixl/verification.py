"""The verification of KV transfers on one NIXL worker: it carries out the scheduler's orders at the end of a step."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from typing import Any, Final

from penstock.instrumentation.core import guard
from penstock.instrumentation.vllm.compat import layer_groups, mixes_memory_types
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

BUDGET: Final = 0.05
"""Seconds of a step that digests and comparisons may take; one that has begun is finished."""

_GUARD = guard("nixl")

_TOO_MUCH: Final = "too much was to be digested or compared in one step"
_FAILED: Final = "the blocks could not be digested"
_NOT_COMPARED: Final = "the blocks could not be compared"
_DRAFT: Final = "the draft model may write its KV after the digest"
_NO_DRAFT_KV: Final = ("ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator")
"""vLLM's ways of speculative decoding that have no KV cache of their own."""

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
        self._deadline: float | None = None

    def begin(self) -> None:
        """Begin the digests and comparisons of a step."""
        self._deadline = None

    def _has_time(self) -> bool:
        """Tell whether another digest or comparison may begin in this step; the first one may."""
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + BUDGET
        return now < self._deadline

    @property
    def is_ordered(self) -> bool:
        """Whether digests or comparisons are ordered, for this step or for the end of a load."""
        return bool(self._orders or self._loads)

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
        """Compare the blocks of a load that has ended with the digest of *order*; an error is a reason why they were not."""
        check = LoadCheck(0, 0, 0, _TOO_MUCH)
        if self._has_time():
            check = LoadCheck(0, 0, 0, _NOT_COMPARED)
            with _GUARD:
                check = check_load(order.digest, self._layout_of(worker), meta.local_block_ids)
        return check

    def add(self, request_id: str, check: LoadCheck) -> None:
        """Report what a comparison has found."""
        self.checked.append(CheckedLoad(request_id, *check))

    def compute_digests(self, worker: Any) -> None:
        """Compute the digests that were ordered for this step."""
        if not self._orders:
            return
        orders, self._orders = self._orders, ()
        for order in orders:
            digest = RankDigest(order.request_id, problem=_TOO_MUCH, number=order.number)
            if self._has_time():
                digest = replace(digest, problem=_FAILED)
                with _GUARD:
                    digest = self._digest(self._layout_of(worker), order)
            self.digests.append(digest)

    @staticmethod
    def _digest(layout: KvLayout, order: DigestOrder) -> RankDigest:
        if layout.problem or len(order.groups) != len(layout.groups):
            problem = layout.problem or "the KV cache groups are not those of the scheduler"
            return RankDigest(order.request_id, problem=problem, number=order.number)
        digests = BlockDigests(layout)
        groups = tuple(
            digests.compute(number, blocks).numpy().astype("<i8").tobytes()
            for number, blocks in enumerate(order.groups)
        )
        return RankDigest(
            order.request_id,
            layout.block_size,
            layout.total_heads,
            layout.heads,
            groups,
            number=order.number,
        )

    def _layout_of(self, worker: Any) -> KvLayout:
        if self._layout is None:
            self._layout = _layout(worker)
        return self._layout


def _layout(worker: Any) -> KvLayout:
    """Return the layout of a worker's KV caches."""
    if worker._has_mamba or mixes_memory_types(worker) or worker._physical_blocks_per_logical_kv_block != 1:
        return KvLayout(problem="a state that is not attention's, or blocks of two sizes, cannot be digested")
    if any(getattr(worker, f"{name}_size", 1) > 1 for name in ("dcp", "pcp", "pp")):
        return KvLayout(problem=_SPLIT)
    speculative = worker.vllm_config.speculative_config
    if speculative is not None and speculative.method not in _NO_DRAFT_KV:
        return KvLayout(problem=_DRAFT)
    topology = worker.transfer_topo
    groups = layer_groups(worker.kv_cache_config)
    return layout_of(
        worker.device_kv_caches,
        {name: groups[name] for name in worker._layer_specs},
        block_size=worker.block_size,
        total_heads=topology.total_num_kv_heads,
        # Each rank has all of MLA's content.
        rank=topology.tp_rank if not topology.is_mla else 0,
        ranks=topology.tp_size if not topology.is_mla else 1,
    )
