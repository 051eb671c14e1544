"""One set of servers at a time: whoever asks for the same variant shares it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.kv_bench import Bench
from tests.support.kv_peers import Spare
from tests.support.stacks import variant_stack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.stack import Stack


@pytest.fixture(scope="session")
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Agent, backend and two servers in the variant that the test is parametrised with."""
    variant = request.param
    logs = tmp_path_factory.mktemp(f"engines-{variant.name}")
    with pytest.MonkeyPatch.context() as patch:
        # The agent under test exports to the backend beside it, whoever runs the tests.
        for variable in ("OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED", "OTEL_EXPORTER_OTLP_PROTOCOL"):
            patch.delenv(variable, raising=False)
        with variant_stack(variant, logs=logs) as running:
            yield running


@pytest.fixture(scope="session")
def spare(stack: Stack) -> Iterator[Spare]:
    """Give a second prefill server that tests may stop and kill; it starts when it is first needed."""
    spare = Spare(stack)
    yield spare
    spare.stop()


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
