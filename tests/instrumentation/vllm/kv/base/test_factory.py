"""Every connector in vLLM's factory: the mixins fit its class, and docs/connectors.md has a row about it."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from penstock.instrumentation.hooks.patch import instrumented
from penstock.instrumentation.vllm.compat import connector_differences
from penstock.instrumentation.vllm.kv.base.worker_mixin import KvWorkerMixin
from penstock.instrumentation.vllm.kv.scheduler_mixin import SchedulerSideMixin

from tests.support.engine.versions import from_version

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's and its dependencies' own
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.v1 import supports_hma
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

DOCUMENT = Path(__file__).resolve().parents[5] / "docs" / "connectors.md"
NAMES = sorted(KVConnectorFactory._registry)
# Their modules import libraries that may not be in the environment: LMCache is not, msgpack is in the one of the tests.
FOREIGN = {"LMCacheMPConnector", "MoRIIOConnector"}


def connector_class(name: str) -> Any:
    """Return the class that the factory has for *name*."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return KVConnectorFactory.get_connector_class_by_name(name)
        except ImportError as error:
            if name not in FOREIGN:
                raise
            pytest.skip(f"{name} cannot be imported here: {error}")


@pytest.mark.parametrize("mixin", [SchedulerSideMixin, KvWorkerMixin])
@pytest.mark.parametrize("name", NAMES)
def test_the_class_stays_what_vllm_expects(name: str, mixin: type) -> None:
    """Name, ancestry, HMA support and class methods are those of the class itself; an object can change to it and back."""
    base = connector_class(name)
    made: Any = instrumented(mixin, base)
    assert (made.__name__, made.__qualname__, made.__module__) == (
        base.__name__,
        base.__qualname__,
        base.__module__,
    )
    assert issubclass(made, base)
    assert supports_hma(made) == supports_hma(base)
    assert made.__abstractmethods__ == base.__abstractmethods__
    for method in ("build_kv_connector_stats", "requires_piecewise_for_cudagraph", "build_prom_metrics"):
        assert getattr(made, method).__func__ is getattr(base, method).__func__
    if not base.__abstractmethods__:
        connector = object.__new__(base)
        connector.__class__ = made
        connector.__class__ = base


@pytest.mark.parametrize("name", NAMES)
def test_what_is_wrapped_is_what_vllm_calls(name: str) -> None:
    """Each method of the mixin extends one that every connector has."""
    base = connector_class(name)
    assert issubclass(base, KVConnectorBase_V1)
    # An older vLLM's class gets the newest's shape first.
    for difference in connector_differences(base):
        base = instrumented(difference, base)
    for method in vars(KvWorkerMixin):
        if not method.startswith("_"):
            assert callable(getattr(base, method)), method


@from_version(0, 32, "has other connectors")
def test_the_table_is_complete() -> None:
    """The document has a row for each connector of the factory, and for no other."""
    _, _, section = DOCUMENT.read_text().partition("\n### Each connector\n")
    section, _, _ = section.partition("\n### ")
    assert sorted(set(re.findall(r"^\| `(\w+)`", section, flags=re.MULTILINE))) == NAMES
