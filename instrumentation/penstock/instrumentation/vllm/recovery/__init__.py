"""The way back, for KV and encoder outputs alike: taint, rewind, client error."""

from __future__ import annotations

from penstock.instrumentation.vllm.recovery import client_error, rewind
from penstock.instrumentation.vllm.recovery.client_error import ClientErrorHook, FailingRequests
from penstock.instrumentation.vllm.recovery.encoder_media import WorkerEncoderInputs
from penstock.instrumentation.vllm.recovery.rewind import (
    FreedBlocks,
    Taint,
    UnconfirmedStep,
    UnconfirmedSteps,
    freed_by_name,
)

__all__ = [
    "ClientErrorHook",
    "FailingRequests",
    "FreedBlocks",
    "Taint",
    "UnconfirmedStep",
    "UnconfirmedSteps",
    "WorkerEncoderInputs",
    "client_error",
    "freed_by_name",
    "rewind",
]
