"""The parts of connectors known by their base interface, by themselves."""

from __future__ import annotations

import pickle
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.kv.base import connector_adapters, kv_jobs
from penstock.instrumentation.vllm.kv.base.connector_adapters import Done, EventJobs, Job, OffloadingJobs
from penstock.instrumentation.vllm.kv.base.kv_jobs import JobTable
from penstock.instrumentation.vllm.kv.base.step_loads import KvStepLoads
from penstock.instrumentation.vllm.messages.transfers import (
    LOADS_MAX,
    BrokenBlocks,
    FinishedTransfer,
    KvLoad,
    loads_of,
    peer_at,
    place_of,
    saves_of,
)
from penstock.instrumentation.vllm.messages.worker_report import WorkerReport, find_reports
from penstock.instrumentation.vllm.naming.peers import Peer

SEND, RECEIVE = c.DIRECTION_SEND, c.DIRECTION_RECEIVE


class Source(Enum):
    """As vLLM's CacheHitSource."""

    HOST = "host"
    DISK = "disk"
    P2P = "p2p"


@pytest.mark.parametrize(
    ("sources", "place"),
    [
        ([Source.HOST], "host"),
        ({Source.DISK: 64}, "disk"),
        ([Source.HOST, Source.DISK], ""),
        ([Source.P2P], ""),
        ([None], ""),
        ([], ""),
    ],
)
def test_place(sources: Any, place: str) -> None:
    """Only one place that is no other engine is a place."""
    assert place_of(sources) == place


def test_peer_of_a_move() -> None:
    """A place goes before the request's peer: it was not that peer who was loaded from."""
    peer = Peer("10.0.0.7:5600")
    assert peer_at("disk", peer) == Peer("disk")
    assert peer_at("", peer) == peer
    assert peer_at("", None) == Peer("unknown")


def test_a_step_that_loads_nothing_has_nothing_on_it() -> None:
    """The metadata of most steps is what the connector made of it."""
    metadata, step = SimpleNamespace(), KvStepLoads(object())
    step.found("asked", waits=True)
    step.attach(object(), metadata, None)
    assert vars(metadata) == {}
    assert (loads_of(metadata), saves_of(metadata), loads_of(None)) == ((), (), ())


def test_loads_of_a_step() -> None:
    """What began since the last step goes with this one, once; what is asked again counts as answered last."""
    metadata, step = SimpleNamespace(), KvStepLoads(SimpleNamespace(_cache_hit_source=Source.HOST))
    step.found("a", waits=False)
    step.found("a", waits=True)
    step.begins("a", 64)
    step.begins("never-asked", 32)
    step.comes_from("a", [Source.DISK])
    step.comes_from("unknown", [Source.DISK])
    step.attach(object(), metadata, None)
    assert loads_of(metadata) == (KvLoad("a", 64, True, "disk"), KvLoad("never-asked", 32, False, "host"))
    again = SimpleNamespace()
    step.attach(object(), again, None)
    assert loads_of(again) == ()


def test_a_step_is_bounded() -> None:
    """What one step tells is bounded, and so is what is remembered of those that only asked."""
    metadata, step = SimpleNamespace(), KvStepLoads(object())
    for number in range(5_000):
        step.found(str(number), waits=False)
    for number in range(5_000):
        step.begins(str(number), 1)
    step.attach(object(), metadata, None)
    assert len(loads_of(metadata)) == LOADS_MAX
    step.left("4999")


# Three numbers say all that differs.
_MOVES = st.integers(0, 3).map(lambda rank: FinishedTransfer(f"r{rank}", "C", rank, RECEIVE, 0, rank))
_BROKEN = st.integers(0, 3).map(lambda rank: BrokenBlocks("C", rank, frozenset({rank})))
_REPORTS = st.builds(
    WorkerReport,
    moves=st.lists(_MOVES, max_size=3).map(tuple),
    broken=st.lists(_BROKEN, max_size=2).map(tuple),
)


@given(st.lists(_REPORTS, min_size=1, max_size=4))
def test_ranks_are_combined(reports: list[WorkerReport]) -> None:
    """Nothing is lost or doubled on the way from the ranks to the scheduler, pickled as vLLM does it."""
    first, *others = (pickle.loads(pickle.dumps(each)) for each in reports)
    for each in others:
        first = first.aggregate(each)
    (found,) = find_reports(first)
    assert found.moves == tuple(move for report in reports for move in report.moves)
    assert found.broken == tuple(broken for report in reports for broken in report.broken)


def _stats(sizes: list[int], seconds: float = 0.0) -> Any:
    return SimpleNamespace(sizes=sizes, time=seconds)


def _completed(numbers: list[int], load: Any, store: Any) -> Any:
    return SimpleNamespace(
        completed_jobs=dict.fromkeys(numbers, 1), transfer_stats=SimpleNamespace(load=load, store=store)
    )


@pytest.mark.parametrize(
    ("completed", "expected"),
    [
        (_completed([1], _stats([100], 0.5), _stats([])), [Done(1, RECEIVE, 100, 500_000_000)]),
        (
            _completed([3, 2, 1], _stats([100], 0.5), _stats([7, 8], 1.0)),
            [Done(1, RECEIVE, 100, 500_000_000), Done(3, SEND, 7), Done(2, SEND, 8)],
        ),
        # A rank that does not write acknowledges all the same.
        (_completed([2, 3], _stats([]), _stats([])), [Done(2, SEND), Done(3, SEND)]),
        (_completed([2, 3], _stats([]), _stats([7])), [Done(2, SEND), Done(3, SEND)]),
        # Begun before Penstock was there, or while it was paused.
        (_completed([9], _stats([]), _stats([7], 0.1)), []),
    ],
)
def test_jobs_of_the_offloading_connector(completed: Any, expected: list[Done]) -> None:
    """Bytes only where there is one size for each job, a time only where it is one job's."""
    job = SimpleNamespace(req_id="r")
    begun = SimpleNamespace(load_jobs={1: job}, store_jobs={2: job, 3: job})
    table = JobTable(OffloadingJobs())
    table.begin(begun)
    assert [done for _, done in table.end(completed)] == expected
    assert table.end(completed) == []


def test_jobs_of_the_simple_cpu_offload_connector() -> None:
    """A step's saves are one job without a request; a step without any has none."""
    jobs = EventJobs()
    assert list(jobs.begun(SimpleNamespace(store_event=-1))) == []
    table = JobTable(jobs)
    table.begin(SimpleNamespace(store_event=4))
    ended = table.end(SimpleNamespace(completed_store_events={3: 1, 4: 1}))
    assert ended == [(Job(4, SEND), Done(4, SEND))]


def test_jobs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connector whose jobs never end costs no more than so many."""
    monkeypatch.setattr(kv_jobs, "JOBS_MAX", 2)
    table = JobTable(EventJobs())
    for number in range(4):
        table.begin(SimpleNamespace(store_event=number))
    ended = table.end(SimpleNamespace(completed_store_events=dict.fromkeys(range(4), 1)))
    assert [job.number for job, _ in ended] == [2, 3]


def test_dialects_go_by_the_class_and_its_ancestors() -> None:
    """A class that derives from a connector of vLLM's is understood as that one."""

    class OffloadingConnector:
        pass

    class Mine(OffloadingConnector):
        pass

    assert connector_adapters.named(connector_adapters.JOBS, Mine()) is OffloadingJobs
    assert connector_adapters.named(connector_adapters.JOBS, object()) is None
