"""All that vLLM pickles between scheduler and workers for us."""

from __future__ import annotations

from penstock.instrumentation.vllm.messages.integrity import (
    CheckedLoad,
    DigestOrder,
    GroupBlocks,
    GroupDigest,
    RankDigest,
    TransferDigest,
    VerifyOrder,
)
from penstock.instrumentation.vllm.messages.step_metadata import StepMetadata, with_children
from penstock.instrumentation.vllm.messages.transfers import (
    LOADS,
    LOADS_MAX,
    SAVES,
    BrokenBlocks,
    FinishedTransfer,
    KvLoad,
    loads_of,
    peer_at,
    place_of,
    saves_of,
)
from penstock.instrumentation.vllm.messages.worker_report import (
    CheckedItem,
    Culprit,
    EcReport,
    ItemFailure,
    LoadFailure,
    LoadFailureReasons,
    LoadReason,
    WorkerReport,
    checked_items,
    failed_items,
    find_reports,
)

__all__ = [
    "LOADS",
    "LOADS_MAX",
    "SAVES",
    "BrokenBlocks",
    "CheckedItem",
    "CheckedLoad",
    "Culprit",
    "DigestOrder",
    "EcReport",
    "FinishedTransfer",
    "GroupBlocks",
    "GroupDigest",
    "ItemFailure",
    "KvLoad",
    "LoadFailure",
    "LoadFailureReasons",
    "LoadReason",
    "RankDigest",
    "StepMetadata",
    "TransferDigest",
    "VerifyOrder",
    "WorkerReport",
    "checked_items",
    "failed_items",
    "find_reports",
    "loads_of",
    "peer_at",
    "place_of",
    "saves_of",
    "with_children",
]
