"""The NIXL hook on an unsupported worker, and its uninstallation, on real workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from penstock.instrumentation.hooks.registry import registry

from tests.support.kv.nixl_pair import Engine, connect, instrumented_engines, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.engine.recorder import Recorder

    MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine(recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeEngine]:
    """Build instrumented engines."""
    del recorder
    prepare(monkeypatch, tmp_path)
    with instrumented_engines(tmp_path, monkeypatch) as make:
        yield make


def test_a_worker_that_does_not_fit(
    make_engine: MakeEngine, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A NIXL worker without a required method is not instrumented, and the hook reports the requirement."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker import NixlBaseConnectorWorker

    monkeypatch.delattr(NixlBaseConnectorWorker, "_ensure_handshake")
    engine = make_engine()
    assert not hasattr(engine.worker, "_penstock")
    (state,) = [state for state in registry.report() if state.name == "nixl"]
    assert (state.installed, state.reason) == (
        False,
        "NixlPullConnectorWorker._ensure_handshake is missing",
    )
    assert not recorder.events


def test_uninstalled(make_engine: MakeEngine, recorder: Recorder) -> None:
    """After uninstallation live workers have vLLM's own classes and continue."""
    prefill, decode = make_engine("kv_producer"), make_engine("kv_consumer")
    registry.uninstall("nixl")
    assert not any("Mixin" in base.__name__ for base in type(decode.worker).__mro__)
    assert not any("Mixin" in base.__name__ for base in type(decode.worker.nixl_wrapper).__mro__)
    connect(prefill, decode)
    assert not recorder.events
