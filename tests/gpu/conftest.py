"""Tests on a GPU run only where this directory is named; a run's results replace those in the page ``PENSTOCK_GPU_PAGE``."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.harness.machine import commit
from demo.common.agent import Agent
from tests.support.agent.agent import short_directory
from tests.support.gpu.document import PASSED, Check, page
from tests.support.gpu.machine import Machine, look

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_HERE = Path(__file__).parent
_FIGURE = "figure"
_checks: dict[str, Check] = {}


@cache
def _machine() -> Machine | str:
    return look()


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Leave this directory out where the command line does not name it."""
    named = (Path(config.invocation_params.dir, argument.partition("::")[0]) for argument in config.args)
    return None if any(path.is_relative_to(_HERE) for path in named) else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests, and begin the page's table with all of them, also those that this run leaves out."""
    for item in items:
        if item.path.parent == _HERE:
            item.add_marker(pytest.mark.gpu)
            _checks[item.nodeid] = Check(_named(item))


def _named(item: pytest.Item) -> str:
    """Return the first line of a test's docstring, with its parameters."""
    doc = (item.obj.__doc__ or item.name).strip().splitlines()[0]  # type: ignore[attr-defined]
    callspec = getattr(item, "callspec", None)
    return f"{doc} ({callspec.id})" if callspec else doc


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip with a sentence where there is no GPU."""
    machine = _machine()
    if isinstance(machine, str):
        pytest.skip(machine)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how a check ended; a failure stays one."""
    check = _checks.get(report.nodeid)
    if check is None or check.result == "failed":
        return
    if report.when == "call" or report.outcome != PASSED:
        check.result, check.reason = report.outcome, _reason(report)
    if report.when == "call":
        check.figures = [str(value) for name, value in report.user_properties if name == _FIGURE]


def _reason(report: pytest.TestReport) -> str:
    if report.outcome == PASSED:
        return ""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr)


def pytest_sessionfinish() -> None:
    """Write the page, if it is wanted and there was a GPU."""
    target = os.environ.get("PENSTOCK_GPU_PAGE")
    if target is None or not _checks:
        return
    machine = _machine()
    if isinstance(machine, str):
        return
    path = Path(target)
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    path.write_text(page(path.read_text(), machine, _checks.values(), date=date, commit=commit()))


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Give a function that prints a figure and puts it into the check's row."""

    def measured(figure: str) -> None:
        print(f"{request.node.name}: {figure}")  # noqa: T201  (shown with -s)
        request.node.user_properties.append((_FIGURE, figure))

    return measured


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    """Give an agent; at the end, the instrumentation has had nothing to contain."""
    with short_directory() as directory, pytest.MonkeyPatch.context() as patch:
        for variable in ("OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED", "OTEL_EXPORTER_OTLP_ENDPOINT"):
            patch.delenv(variable, raising=False)
        agent = Agent(directory)
        agent.start()
        try:
            yield agent
            contained = agent.metrics().select("penstock_guard_errors_total")
            assert not contained, [str(sample) for sample in contained]
        finally:
            agent.stop()


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a directory for servers' output."""
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
def gpus() -> Sequence[str]:
    """Give the GPUs' names."""
    machine = _machine()
    assert isinstance(machine, Machine)
    return machine.gpus
