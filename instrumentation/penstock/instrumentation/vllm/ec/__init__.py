"""Encoder outputs: scheduler and worker side of any EC connector."""

from __future__ import annotations

from penstock.instrumentation.vllm.ec.hook import EcConnectorHook, EcSchedulerSideMixin
from penstock.instrumentation.vllm.ec.load_controller import EcControl
from penstock.instrumentation.vllm.ec.protocol import EcFailure, EcObserver, EcTransfer

__all__ = [
    "EcConnectorHook",
    "EcControl",
    "EcFailure",
    "EcObserver",
    "EcSchedulerSideMixin",
    "EcTransfer",
]
