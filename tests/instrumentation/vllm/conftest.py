"""Fixtures of the vLLM hooks: a recording runtime, real schedulers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.engine.recorder import Recorder, recording
from tests.support.engine.versions import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


# Until 0.29 there is no Mooncake for encoder outputs, what ZmqECConnector needs is missing, and Mooncake's names no reason.
collect_ignore: list[str] = []
if VERSION < (0, 31):
    collect_ignore += ["ec/test_statistics.py"]
if VERSION < (0, 30):
    collect_ignore += [
        "ec/cpu",
        "ec/mooncake",
        "zmq_ec",
        "kv/base/test_mooncake.py",
        "recovery/test_media_rewind.py",
    ]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """Penstock is on in this process and tells this recorder."""
    with recording(monkeypatch) as found:
        yield found


@pytest.fixture
def make_scheduler(recorder: Recorder, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Build an instrumented real scheduler with a real NIXL connector on its side."""
    from penstock.instrumentation.vllm.kv.hook import KvConnectorHook
    from penstock.instrumentation.vllm.scheduler.hook import instrument

    from tests.support.engine import schedulers

    hook = KvConnectorHook()
    hook.install()
    built = []

    def make(
        kind: str = "sync",
        *,
        role: str = "kv_consumer",
        own: str = "fail",
        hybrid: bool | str = False,
        pictures: bool = False,
        chunk: int = 1024,
        **transfer: Any,
    ) -> Any:
        chosen = {
            "kv_connector": "NixlConnector",
            "kv_buffer_device": "cpu",
            "kv_role": role,
            "kv_load_failure_policy": own,
            **transfer,
        }
        config = schedulers.vllm_config(tmp_path, **chosen)
        config.scheduler_config.async_scheduling = kind == "async"
        scheduler = schedulers.build(instrument(schedulers.SCHEDULERS[kind]), config, hybrid=hybrid)
        if pictures:
            schedulers.make_room_for_items(scheduler, chunk=chunk)
        built.append(scheduler)
        return scheduler

    yield make
    for scheduler in built:
        scheduler.shutdown()
    hook.uninstall()


@pytest.fixture
def make_ec_scheduler(recorder: Recorder, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Build an instrumented real scheduler of a consumer of encoder outputs, with a toy EC connector on its side."""
    from penstock.instrumentation.vllm.ec.hook import EcConnectorHook
    from penstock.instrumentation.vllm.scheduler.hook import instrument
    from vllm.config import ECTransferConfig

    from tests.support.engine import schedulers

    hook = EcConnectorHook()
    hook.install()
    built = []

    def make(
        kind: str = "sync",
        *,
        connector: str = "ToyEcConnector",
        rows: int = 4096,
        chunk: int = 1024,
        extra: dict[str, Any] | None = None,
        hybrid: bool | str = False,
        **transfer: Any,
    ) -> Any:
        config = schedulers.vllm_config(tmp_path, **transfer)
        config.ec_transfer_config = ECTransferConfig(
            ec_connector=connector,
            ec_role="ec_consumer",
            ec_connector_module_path="tests.support.ec.fake_ec",
            ec_connector_extra_config=extra or {},
        )
        config.scheduler_config.async_scheduling = kind == "async"
        scheduler = schedulers.build(instrument(schedulers.SCHEDULERS[kind]), config, hybrid=hybrid)
        schedulers.make_room_for_items(scheduler, rows=rows, chunk=chunk)
        built.append(scheduler)
        return scheduler

    yield make
    for scheduler in built:
        scheduler.shutdown()
    hook.uninstall()
