"""Installs the hooks; called by the plugin in every process that vLLM starts. Idempotent."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from penstock.instrumentation.hooks import registry
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.api_server import TraceContextHook
from penstock.instrumentation.vllm.ec import EcConnectorHook
from penstock.instrumentation.vllm.ec.cpu import CpuEc
from penstock.instrumentation.vllm.ec.mooncake import MooncakeEc
from penstock.instrumentation.vllm.eplb import EplbHook
from penstock.instrumentation.vllm.kv.hook import KvConnectorHook
from penstock.instrumentation.vllm.scheduler import SchedulerClassHook
from penstock.instrumentation.vllm.server_stop import EngineFailureHook, ServerStopHook
from penstock.instrumentation.vllm.zmq_ec.registration import ZmqEcRegistration

if TYPE_CHECKING:
    from penstock.instrumentation.hooks import Hook
    from penstock.instrumentation.vllm.ec import EcAdapter

# vLLM inspects a model's class in a process of its own, which serves no request and ends at once.
_INSPECTION: Final = "vllm.model_executor.models.registry"


def ec_adapters() -> tuple[EcAdapter, ...]:
    """Return the adapters of vLLM's own EC connectors."""
    return (MooncakeEc(), CpuEc())


def hooks() -> tuple[Hook, ...]:
    """Return the hooks that are installed at once, in order; those of parts of vLLM follow when it builds one."""
    return (
        SchedulerClassHook(),
        KvConnectorHook(),
        EcConnectorHook(ec_adapters()),
        ZmqEcRegistration(),
        EplbHook(),
        TraceContextHook(),
        ServerStopHook(),
        EngineFailureHook(),
    )


def install() -> None:
    """Install every hook that is not disabled."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name == _INSPECTION:
        return
    disabled = runtime.settings.hooks_disabled if runtime.settings is not None else ()
    for hook in hooks():
        registry.install(hook, disabled)
