"""Installs the hooks; called by the plugin in every process that vLLM starts. Idempotent."""

from __future__ import annotations

from penstock.instrumentation.hooks import registry
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.connectors import KvConnectorHook
from penstock.instrumentation.vllm.frontend import TraceContextHook
from penstock.instrumentation.vllm.scheduler_hook import SchedulerClassHook


def install() -> None:
    """Install every hook that is not disabled; those of a scheduler class and of NIXL follow when vLLM builds one."""
    disabled = runtime.settings.hooks_disabled if runtime.settings is not None else ()
    for hook in (SchedulerClassHook(), KvConnectorHook(), TraceContextHook()):
        registry.install(hook, disabled)
