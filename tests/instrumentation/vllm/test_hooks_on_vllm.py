"""The hooks fit the vLLM that is installed, and come out again."""

from __future__ import annotations

import sys
import warnings
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core.guard import guard
from penstock.instrumentation.hooks.registry import registry
from penstock.instrumentation.vllm import install as installer
from penstock.instrumentation.vllm.scheduler.hook import create_scheduler, instrument
from penstock.instrumentation.vllm.scheduler.mixin import SchedulerMixin

from tests.support.engine import schedulers

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's and its dependencies' own
    from vllm.config.scheduler import SchedulerConfig
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.utils.import_utils import resolve_obj_by_qualname
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.engine.recorder import Recorder

NAMES = ("kv_connector", "scheduler_class", "trace_context")


@pytest.fixture
def installed(recorder: Recorder) -> Iterator[None]:
    """Install all hooks for the length of a test."""
    del recorder
    installer.install()
    yield
    registry.uninstall_all()


@pytest.mark.usefixtures("installed")
def test_all_fit() -> None:
    """Every hook is installed, and installing again changes nothing."""
    before = KVConnectorFactory.create_connector
    installer.install()
    assert KVConnectorFactory.create_connector == before
    states = {state.name: state for state in registry.report()}
    assert [(states[name].installed, states[name].reason) for name in NAMES] == [(True, "")] * len(NAMES)


@pytest.mark.usefixtures("recorder")
def test_all_come_out() -> None:
    """Uninstalled, vLLM is as it was."""
    before = (vars(KVConnectorFactory)["create_connector"], SchedulerConfig.get_scheduler_cls)
    installer.install()
    assert (vars(KVConnectorFactory)["create_connector"], SchedulerConfig.get_scheduler_cls) != before
    registry.uninstall_all()
    assert (vars(KVConnectorFactory)["create_connector"], SchedulerConfig.get_scheduler_cls) == before


@pytest.mark.usefixtures("recorder")
def test_model_inspection_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process in which vLLM inspects a model's class gets no hooks."""
    main = ModuleType("__main__")
    main.__spec__ = SimpleNamespace(name="vllm.model_executor.models.registry")  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "__main__", main)
    before = vars(KVConnectorFactory)["create_connector"]
    installer.install()
    assert vars(KVConnectorFactory)["create_connector"] is before


# From 0.32 on.
try:
    from vllm.v1.core.sched.diffusion_scheduler import DiffusionScheduler
except ImportError:
    OTHER_SCHEDULERS: tuple[type, ...] = ()
else:
    OTHER_SCHEDULERS = (DiffusionScheduler,)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("asynchronous", "chosen", "base"),
    [
        (False, None, Scheduler),
        (True, None, AsyncScheduler),
        *((False, f"{each.__module__}.{each.__name__}", each) for each in OTHER_SCHEDULERS),
        (True, AsyncScheduler, AsyncScheduler),
    ],
)
def test_whatever_class_vllm_resolves(asynchronous: bool, chosen: Any, base: type) -> None:
    """The mixin is over the class that vLLM would have used, and it is one class for each."""
    config = SchedulerConfig.default_factory(async_scheduling=asynchronous, scheduler_cls=chosen)
    found = config.get_scheduler_cls()
    assert issubclass(found, base)
    assert issubclass(found, SchedulerMixin)
    assert found is config.get_scheduler_cls()
    assert found.__qualname__ == base.__qualname__


@pytest.mark.usefixtures("recorder")
def test_a_scheduler_that_does_not_fit() -> None:
    """A scheduler class without the methods that are needed is left alone, and the hook says what it misses."""
    registry.uninstall("scheduler")

    class Foreign:
        def schedule(self) -> None: ...

    assert instrument(Foreign) is Foreign
    (state,) = [state for state in registry.report() if state.name == "scheduler"]
    assert not state.installed
    assert "Foreign.update_from_output is missing" in state.reason


@pytest.mark.usefixtures("recorder")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_factory_for_scheduler_cls(kind: str, tmp_path: Path) -> None:
    """--scheduler-cls takes the factory's dotted name: it builds what vLLM would have built, instrumented."""
    name = "penstock.instrumentation.vllm.scheduler.create_scheduler"
    assert resolve_obj_by_qualname(name) is create_scheduler
    config = schedulers.vllm_config(tmp_path)
    config.scheduler_config.async_scheduling = kind == "async"
    config.scheduler_config.scheduler_cls = name
    built = schedulers.build(instrument(config.scheduler_config.get_scheduler_cls()), config)
    assert isinstance(built, schedulers.SCHEDULERS[kind])
    assert isinstance(built, SchedulerMixin)
    assert config.scheduler_config.scheduler_cls == name
    built.shutdown()


def test_a_class_that_refuses_to_be_derived_from_stays(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler class that raises when it is derived from is used as it is, and the error is counted."""
    del recorder

    class Final(Scheduler):
        def __init_subclass__(cls) -> None:
            raise TypeError("this scheduler is final")

    monkeypatch.setattr(guard, "raising", False)
    guard.reset()
    assert instrument(Final) is Final
    assert guard.counts.drain() == {("scheduler_class", "TypeError"): 1}
