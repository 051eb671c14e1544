"""Differences between versions of vLLM's EC connectors, over classes of an older one's shape."""

from __future__ import annotations

import sys
import warnings
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import guard
from penstock.instrumentation.hooks import Patch, instrumented
from penstock.instrumentation.vllm.compat import (
    ask_for_reports,
    encoder_differences,
    hears_all_ranks,
    placeholder_fields,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from vllm.distributed.ec_transfer import ec_transfer_state
    from vllm.v1.executor import abstract
    from vllm.v1.worker.ec_connector_model_runner_mixin import ECConnectorModelRunnerMixin

if TYPE_CHECKING:
    from collections.abc import Iterator


class OldConnector:
    """A connector as of 0.27: it has no worker metadata."""


class OurMixin:
    """As Penstock's mixin: it extends the connector's metadata."""

    fails = False

    def build_connector_worker_meta(self) -> str:
        """Put a report around it."""
        if self.fails:
            raise ValueError("a fault of ours")
        upstream: Any = super()
        return f"report around {upstream.build_connector_worker_meta()}"


@pytest.fixture
def old_runner(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give vLLM's model runner the step of an older one, which asks for nothing; return what it does."""
    done: list[str] = []

    @contextmanager
    def step(output: Any) -> Iterator[Any]:
        done.append("begin")
        yield output
        done.append("end")

    monkeypatch.setattr(ECConnectorModelRunnerMixin, "_get_ec_connector_output", staticmethod(step))
    return done


def _connector() -> Any:
    (difference,) = encoder_differences(OldConnector)
    return instrumented(OurMixin, instrumented(difference, OldConnector))()


def test_a_newer_connector_needs_nothing() -> None:
    """It has worker metadata of its own."""
    newer = type("Newer", (), {"build_connector_worker_meta": lambda _: None})
    assert not encoder_differences(newer)


def test_a_report_goes_with_the_step(monkeypatch: pytest.MonkeyPatch, old_runner: list[str]) -> None:
    """The runner sends it although vLLM's own step does not ask, and is as before once the hook is gone."""
    connector = _connector()
    monkeypatch.setattr(ec_transfer_state, "_EC_CONNECTOR_AGENT", connector)
    patch = Patch()
    ask_for_reports(patch, guard("ec_connector"))
    output = SimpleNamespace()
    with ECConnectorModelRunnerMixin._get_ec_connector_output(output):
        old_runner.append("forward")
    assert output.ec_connector_worker_meta == "report around None"
    patch.undo()
    output = SimpleNamespace()
    with ECConnectorModelRunnerMixin._get_ec_connector_output(output):
        pass
    assert not vars(output)
    assert old_runner == ["begin", "forward", "end", "begin", "end"]


def test_a_fault_of_ours_ends_no_step(monkeypatch: pytest.MonkeyPatch, old_runner: list[str]) -> None:
    """An error while the report is built is contained, and one of vLLM's in the step goes on."""
    monkeypatch.setattr(guard, "raising", False)
    connector = _connector()
    connector.fails = True
    monkeypatch.setattr(ec_transfer_state, "_EC_CONNECTOR_AGENT", connector)
    patch = Patch()
    ask_for_reports(patch, guard("ec_connector"))
    output = SimpleNamespace()
    with ECConnectorModelRunnerMixin._get_ec_connector_output(output):
        pass
    assert not vars(output)
    assert old_runner == ["begin", "end"]

    def step_that_fails() -> None:
        with ECConnectorModelRunnerMixin._get_ec_connector_output(SimpleNamespace()):
            raise RuntimeError("of vLLM")

    with pytest.raises(RuntimeError, match="of vLLM"):
        step_that_fails()
    patch.undo()


def test_this_runner_is_left_alone_if_it_asks() -> None:
    """A newer vLLM's step asks itself."""
    newest = ECConnectorModelRunnerMixin._get_ec_connector_output
    patch = Patch()
    ask_for_reports(patch, guard("ec_connector"))
    asks = "build_connector_worker_meta" in newest.__wrapped__.__code__.co_names
    assert (ECConnectorModelRunnerMixin._get_ec_connector_output is newest) is asks
    patch.undo()
    assert ECConnectorModelRunnerMixin._get_ec_connector_output is newest


@pytest.mark.parametrize(
    ("ranks", "aggregates", "heard"), [(1, False, True), (2, False, False), (2, True, True)]
)
def test_whose_reports_are_heard(
    ranks: int, aggregates: bool, heard: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until 0.27 an executor hands on what one rank says: no load is guarded that another may lose."""
    monkeypatch.delattr(abstract, "ECOutputAggregator", raising=False)
    if aggregates:
        monkeypatch.setattr(abstract, "ECOutputAggregator", object, raising=False)
    parallel = SimpleNamespace(world_size=ranks)
    scheduler = SimpleNamespace(vllm_config=SimpleNamespace(parallel_config=parallel))
    assert hears_all_ranks(scheduler) is heard


def test_the_fields_of_a_model_that_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where vLLM cannot tell which fields are no media, all are."""
    monkeypatch.setitem(sys.modules, "vllm.distributed.ec_transfer.ec_connector.utils", None)
    assert placeholder_fields(None).fields_for("image") == set()
