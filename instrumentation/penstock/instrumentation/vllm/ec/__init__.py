"""Encoder outputs: scheduler and worker side of any EC connector."""

from __future__ import annotations

from penstock.instrumentation.vllm.ec import fingerprints
from penstock.instrumentation.vllm.ec.hook import EcConnectorHook, EcSchedulerSideMixin
from penstock.instrumentation.vllm.ec.load_controller import EcLoadController
from penstock.instrumentation.vllm.ec.observer import EcObserver
from penstock.instrumentation.vllm.ec.protocol import (
    EcChecksums,
    EcFailure,
    EcListener,
    EcLoader,
    EcPeerSource,
    EcRehearsal,
    EcTransfer,
)
from penstock.instrumentation.vllm.ec.request_loads import (
    EcAdapter,
    Loss,
    PartHook,
    RequestLoads,
    has_name,
)

__all__ = [
    "EcAdapter",
    "EcChecksums",
    "EcConnectorHook",
    "EcFailure",
    "EcListener",
    "EcLoadController",
    "EcLoader",
    "EcObserver",
    "EcPeerSource",
    "EcRehearsal",
    "EcSchedulerSideMixin",
    "EcTransfer",
    "Loss",
    "PartHook",
    "RequestLoads",
    "fingerprints",
    "has_name",
]
