"""A consumer with vLLM's real scheduler and ECCPUConnector, and producers over real NIXL."""

from __future__ import annotations

import contextlib
import gc
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from demo.common.processes import free_port
from tests.support.ec import cpu_connector
from tests.support.ec.cpu_connector import CpuEngine, CpuProducer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.engine.recorder import Recorder


@pytest.fixture
def make_cpu(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., CpuEngine]]:
    """Build a consumer, with a producer unless its *role* is ``ec_both``."""
    from penstock.instrumentation.hooks.registry import registry
    from penstock.instrumentation.vllm.ec.hook import EcConnectorHook
    from penstock.instrumentation.vllm.install import ec_adapters
    from penstock.instrumentation.vllm.scheduler.hook import instrument

    from tests.support.engine import schedulers

    del recorder
    hook = EcConnectorHook(ec_adapters())
    hook.install()
    with contextlib.ExitStack() as stack:

        def make(kind: str = "sync", *, role: str = "ec_consumer", **extra: Any) -> CpuEngine:
            port = free_port()
            cpu_connector.prepare(monkeypatch, port)
            remote = {} if role == "ec_both" else {"ec_enable_nixl": True}
            config = cpu_connector.cpu_config(tmp_path, monkeypatch, role, **remote, **extra)
            config.scheduler_config.async_scheduling = kind == "async"
            scheduler = schedulers.build(instrument(schedulers.SCHEDULERS[kind]), config)
            stack.callback(scheduler.shutdown)
            schedulers.make_room_for_items(scheduler)
            engine = CpuEngine(scheduler, ahead=kind == "async")
            if remote:
                config = cpu_connector.cpu_config(tmp_path, monkeypatch, "ec_producer", **remote)
                engine.producers.append(CpuProducer(config, port))
                stack.callback(engine.producers[0].connector.shutdown)
            return engine

        yield make
    # vLLM closes its sockets with their context, which pyzmq warns of when they are collected.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    hook.uninstall()
    registry.uninstall("ec_cpu_scheduler")
