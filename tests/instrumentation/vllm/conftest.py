"""Fixtures of the vLLM hooks: a recording runtime, real schedulers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.recorder import Recorder, recording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """Penstock is on in this process and tells this recorder."""
    with recording(monkeypatch) as found:
        yield found


@pytest.fixture
def make_scheduler(recorder: Recorder, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Build an instrumented real scheduler with a real NIXL connector on its side."""
    from penstock.instrumentation.vllm.connectors import KvConnectorHook
    from penstock.instrumentation.vllm.scheduler_hook import instrument

    from tests.support import schedulers

    hook = KvConnectorHook()
    hook.install()
    built = []

    def make(
        kind: str = "sync",
        *,
        role: str = "kv_consumer",
        own: str = "fail",
        hybrid: bool = False,
        **transfer: Any,
    ) -> Any:
        chosen = {"kv_connector": "NixlConnector", "kv_buffer_device": "cpu", **transfer}
        config = schedulers.vllm_config(tmp_path, kv_role=role, kv_load_failure_policy=own, **chosen)
        config.scheduler_config.async_scheduling = kind == "async"
        scheduler = schedulers.build(instrument(schedulers.SCHEDULERS[kind]), config, hybrid=hybrid)
        built.append(scheduler)
        return scheduler

    yield make
    for scheduler in built:
        scheduler.shutdown()
    hook.uninstall()
