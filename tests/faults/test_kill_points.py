"""SIGKILL at the places where it would hurt most; each is hit for certain, not by luck."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from penstock.agent.traces.spans import semconv

from tests.faults.bench import bench
from tests.faults.ids import number
from tests.support.otlp.backend import otlp_backend

# The first of so many entries of a producer is a request's end.
KINDS = 3


def deaths(what: str, later: int) -> list[Any]:
    """Return what two lives die of: one before and one after it; or both at one place, the second when it passes later."""
    both = pytest.param((f"before-{what} 1", f"after-{what} 1"), id="each place")
    return [both] + [
        pytest.param((f"{place}-{what} 1", f"{place}-{what} {later}"), id=place, marks=pytest.mark.long)
        for place in ("before", "after")
    ]


@pytest.mark.parametrize("faults", deaths("commit", 4))
def test_a_kill_around_the_commit(faults):
    """Neither what was written and not committed, nor what was committed and not told, is lost or there twice."""
    with bench() as stand:
        stand.traffic()
        stand.agent.kill()
        for fault in faults:
            stand.agent.fault = fault
            stand.agent.start()
            assert stand.agent.wait_death() == -signal.SIGKILL
            stand.audit()
        stand.agent.start()
        stand.traffic()
        stand.settle()


@pytest.mark.parametrize("faults", deaths("export", 2))
def test_a_kill_in_the_middle_of_an_export(faults):
    """Every request's span arrives, whatever was in hand; one that comes twice comes under the same ids."""
    with otlp_backend() as backend:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": backend.endpoint, "OTEL_TRACES_EXPORTER": "otlp"}
        with bench(producers=1, rate=100, env=env) as stand:
            stand.traffic()
            stand.agent.kill()
            for fault in faults:
                stand.agent.fault = fault
                stand.agent.start()
                assert stand.agent.wait_death() == -signal.SIGKILL
            stand.agent.start()
            stand.traffic()
            stand.settle()
            wanted = {name for name in stand.oracle.stored if number(name) % KINDS == 0}
            spans = backend.wait(
                lambda backend: wanted <= {request_of(span) for span in backend.spans},
                f"spans of all {len(wanted)} requests",
                60.0,
            )
    requests: dict[str, Any] = {}
    for span in spans:
        assert requests.setdefault(span.span_id, request_of(span)) == request_of(span)


def request_of(span):
    """Return the request that a span is about."""
    return span.attributes.get(semconv.REQUEST_ID)
