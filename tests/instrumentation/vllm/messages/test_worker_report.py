"""Reports of the workers: aggregated, pickled, found."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.messages.worker_report import LoadFailure, WorkerReport, find_reports
from penstock.instrumentation.vllm.naming.peers import Peer

FAILURE = LoadFailure("r", c.FAILURE_MODE_SETUP, c.ERROR_TYPE_OTHER, Peer("p:1", "e"), 1)


class Own:
    """A connector's own worker metadata, which combines with its like only."""

    def __init__(self, *values: int) -> None:
        self.values = values

    def aggregate(self, other: Own) -> Own:
        """Combine, as vLLM's do."""
        return Own(*self.values, *other.values)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [(None, None, None), (Own(1), None, (1,)), (None, Own(2), (2,)), (Own(1), Own(2), (1, 2))],
)
def test_reports_combine(first: Own | None, second: Own | None, expected: tuple[int, ...] | None) -> None:
    """Two ranks' reports are one, and the connector's own metadata combines by itself."""
    ours = WorkerReport(failures=(FAILURE,), inner=first)
    theirs = WorkerReport(began=(("r", 1),), expired=("x",), inner=second)
    both = ours.aggregate(theirs)
    assert (both.failures, both.began, both.expired) == ((FAILURE,), (("r", 1),), ("x",))
    assert (both.inner.values if both.inner else None) == expected


def test_reports_travel() -> None:
    """A report survives the pickling between worker and scheduler, and is never taken for nothing."""
    report = WorkerReport(failures=(FAILURE,))
    assert pickle.loads(pickle.dumps(report)) == report
    assert WorkerReport()


def test_reports_are_found() -> None:
    """Reports are found in the metadata of a MultiConnector's children, at any depth."""
    report = WorkerReport(expired=("x",))
    nested = SimpleNamespace(metadata=(None, Own(1), SimpleNamespace(metadata=(report,))))
    assert list(find_reports(nested)) == [report]
    assert list(find_reports(report)) == [report]
    assert list(find_reports(None)) == []
