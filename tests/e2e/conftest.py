"""One set of servers at a time, shared by the tests of all files that name the same variant; they reset it, none restarts it.

Servers are forks of one process that has imported vLLM (``tests/support/forks``). One that starts as ``vllm serve`` does on
a CPU, an interpreter for each of its processes, is in ``test_without.py``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from demo.common.steps import until
from tests.support.agent.derived import Told
from tests.support.engine.forked_child import ForkedChild
from tests.support.engine.stacks import variant_stack
from tests.support.kv.bench import Bench
from tests.support.kv.peers import Spare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.stack import Stack
    from tests.support.kv.bench import Prefilled

_HERE = Path(__file__).parent


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of a variant behind each other, whatever file they are in, after those with servers of their own.

    Those that end one of the servers come last of them.
    """
    here = [index for index, item in enumerate(items) if item.path.parent == _HERE]
    ordered = sorted((items[index] for index in here), key=_set_of_servers)
    for index, item in zip(here, ordered, strict=True):
        items[index] = item


def _set_of_servers(item: pytest.Item) -> tuple[str, bool]:
    callspec = getattr(item, "callspec", None)
    variant = callspec.params.get("stack") if callspec else None
    return variant.name if variant else "", item.get_closest_marker("ends_servers") is not None


@pytest.fixture(scope="package", autouse=True)
def _forked_servers() -> Iterator[None]:
    """Start servers, and the ranks of the expert balancer, as forks of a process that has imported vLLM."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("demo.servers", "demo.eplb.__main__"):
            patch.setattr(f"{module}.Child", ForkedChild)
        yield
    ForkedChild.end_servers()


@pytest.fixture(scope="package")
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Agent, backend and two servers in the variant that the test is parametrised with."""
    variant = request.param
    logs = tmp_path_factory.mktemp(f"engines-{variant.name}")
    with pytest.MonkeyPatch.context() as patch:
        # The agent under test exports to the backend beside it, whatever runs the tests.
        for variable in ("OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED", "OTEL_EXPORTER_OTLP_PROTOCOL"):
            patch.delenv(variable, raising=False)
        with variant_stack(variant, logs=logs) as running:
            yield running
            # Whatever the tests did to it, what its agent says adds up.
            Told.of_journal(running.agent.directory / "state" / "journal.db").check()


@pytest.fixture(scope="package")
def spare(stack: Stack) -> Iterator[Spare]:
    """Give a second prefill server that tests may stop and kill; it starts when it is first needed."""
    spare = Spare(stack)
    yield spare
    spare.stop()


@pytest.fixture(scope="package")
def unread(stack: Stack, spare: Spare) -> Iterator[Prefilled]:
    """Give a request that the spare server has computed and that is not read; its lease runs out while other tests run."""
    bench = Bench(stack)
    request = bench.prefilled(server=spare.server())
    until(
        lambda: re.search(r"spare/0 +lease .*%", bench.agent.ctl("get", "holders").output),
        lambda: f"agentctl get holders does not show the lease:\n{bench.agent.ctl('get', 'holders').output}",
    )
    yield request
    bench.close()


@pytest.fixture
def kv(stack: Stack) -> Iterator[Bench]:
    """Give a client of the stack that begins and ends without a policy, and sees that our code raised nothing."""
    bench = Bench(stack)
    bench.forget()
    contained = bench.agent.metrics().value("penstock_guard_errors_total")
    yield bench
    bench.forget()
    bench.close()
    assert bench.agent.metrics().value("penstock_guard_errors_total") == contained, bench.guard_errors()
