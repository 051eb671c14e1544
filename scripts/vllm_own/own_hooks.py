"""A plugin for the pytest that runs vLLM's own tests: installs the hooks, as the entry point does in a server.

It also puts the mixin over the scheduler classes that the tests name themselves; a server asks its configuration for them.
"""

from __future__ import annotations

from typing import Any

import own_outcomes
import vllm.plugins
from penstock.instrumentation.hooks import registry
from penstock.instrumentation.vllm.scheduler import hook
from vllm.v1.core.sched import async_scheduler, scheduler

vllm.plugins.load_general_plugins()
_plain: Any = scheduler.Scheduler
_build = _plain.__init__


def _counted(self: Any, *args: Any, **kwargs: Any) -> None:
    ours = any(each.__module__.startswith("penstock.") for each in type(self).__mro__)
    kind = "instrumented" if ours else "plain"
    counts = own_outcomes.said["schedulers"]
    counts[kind] = counts.get(kind, 0) + 1
    _build(self, *args, **kwargs)


scheduler.Scheduler = hook.instrument(_plain)
async_scheduler.AsyncScheduler = hook.instrument(async_scheduler.AsyncScheduler)
_plain.__init__ = _counted


def pytest_sessionfinish() -> None:
    """Say which hooks are installed."""
    own_outcomes.said["hooks"] = {status.name: status.installed for status in registry.report()}
