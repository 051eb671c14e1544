"""Encoder outputs: scheduler and worker side of any EC connector."""

from __future__ import annotations

from penstock.instrumentation.vllm.ec.hook import EcConnectorHook, EcSchedulerSideMixin
from penstock.instrumentation.vllm.ec.load_controller import EcLoadController
from penstock.instrumentation.vllm.ec.protocol import (
    EcFailure,
    EcListener,
    EcLoader,
    EcPeerSource,
    EcRehearsal,
    EcTransfer,
)

__all__ = [
    "EcConnectorHook",
    "EcFailure",
    "EcListener",
    "EcLoadController",
    "EcLoader",
    "EcPeerSource",
    "EcRehearsal",
    "EcSchedulerSideMixin",
    "EcTransfer",
]
