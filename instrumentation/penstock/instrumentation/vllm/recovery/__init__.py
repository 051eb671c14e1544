"""The way back, for KV and encoder outputs alike: taint, rewind, client error."""

from __future__ import annotations

from penstock.instrumentation.vllm.recovery import client_error, rewind
from penstock.instrumentation.vllm.recovery.client_error import ClientErrorHook
from penstock.instrumentation.vllm.recovery.encoder_media import WorkerMedia
from penstock.instrumentation.vllm.recovery.freed_blocks import Ghost, named
from penstock.instrumentation.vllm.recovery.rewind import Taint

__all__ = [
    "ClientErrorHook",
    "Ghost",
    "Taint",
    "WorkerMedia",
    "client_error",
    "named",
    "rewind",
]
