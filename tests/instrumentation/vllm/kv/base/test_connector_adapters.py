"""The adapters of connectors that report more than vLLM's base interface."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.kv.base import connector_adapters
from penstock.instrumentation.vllm.kv.base.connector_adapters import (
    FinishedJob,
    Job,
    JobTable,
    OffloadingJobAdapter,
    SimpleOffloadJobAdapter,
)

SEND, RECEIVE = c.DIRECTION_SEND, c.DIRECTION_RECEIVE


def _stats(sizes: list[int], seconds: float = 0.0) -> Any:
    return SimpleNamespace(sizes=sizes, time=seconds)


def _completed(numbers: list[int], load: Any, store: Any) -> Any:
    return SimpleNamespace(
        completed_jobs=dict.fromkeys(numbers, 1), transfer_stats=SimpleNamespace(load=load, store=store)
    )


@pytest.mark.parametrize(
    ("completed", "expected"),
    [
        (_completed([1], _stats([100], 0.5), _stats([])), [FinishedJob(1, RECEIVE, 100, 500_000_000)]),
        (
            _completed([3, 2, 1], _stats([100], 0.5), _stats([7, 8], 1.0)),
            [FinishedJob(1, RECEIVE, 100, 500_000_000), FinishedJob(3, SEND, 7), FinishedJob(2, SEND, 8)],
        ),
        # A rank that does not write also acknowledges.
        (_completed([2, 3], _stats([]), _stats([])), [FinishedJob(2, SEND), FinishedJob(3, SEND)]),
        (_completed([2, 3], _stats([]), _stats([7])), [FinishedJob(2, SEND), FinishedJob(3, SEND)]),
        # Started before the hook was installed, or while paused.
        (_completed([9], _stats([]), _stats([7], 0.1)), []),
    ],
)
def test_jobs_of_the_offloading_connector(completed: Any, expected: list[FinishedJob]) -> None:
    """Bytes are reported only with one size for each job, a duration only for a single job."""
    job = SimpleNamespace(req_id="r")
    begun = SimpleNamespace(load_jobs={1: job}, store_jobs={2: job, 3: job})
    table = JobTable(OffloadingJobAdapter())
    table.start(begun)
    assert [done for _, done in table.finish(completed)] == expected
    assert table.finish(completed) == []


def test_jobs_of_the_simple_cpu_offload_connector() -> None:
    """The saves of a step are one job without a request; a step without saves has none."""
    jobs = SimpleOffloadJobAdapter()
    assert list(jobs.started_jobs(SimpleNamespace(store_event=-1))) == []
    table = JobTable(jobs)
    table.start(SimpleNamespace(store_event=4))
    ended = table.finish(SimpleNamespace(completed_store_events={3: 1, 4: 1}))
    assert ended == [(Job(4, SEND), FinishedJob(4, SEND))]


def test_jobs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unfinished jobs are bounded; the oldest are forgotten."""
    monkeypatch.setattr(connector_adapters, "JOBS_MAX", 2)
    table = JobTable(SimpleOffloadJobAdapter())
    for number in range(4):
        table.start(SimpleNamespace(store_event=number))
    ended = table.finish(SimpleNamespace(completed_store_events=dict.fromkeys(range(4), 1)))
    assert [job.number for job, _ in ended] == [2, 3]


def test_adapters_are_found_by_class_and_base_classes() -> None:
    """A subclass of a vLLM connector has its adapter."""

    class OffloadingConnector:
        pass

    class Mine(OffloadingConnector):
        pass

    assert connector_adapters.adapter_for(connector_adapters.JOB_ADAPTERS, Mine()) is OffloadingJobAdapter
    assert connector_adapters.adapter_for(connector_adapters.JOB_ADAPTERS, object()) is None
