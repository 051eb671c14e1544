"""Two decode ranks that read from one prefill rank: a load is a read on each, with one outcome; and a rank that does not exist."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import zmq
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.rules.deadlines import WaitKind

from tests.support.engine import schedulers
from tests.support.engine.recorder import policy, recording
from tests.support.kv.nixl_faults import break_agent, refuse
from tests.support.kv.nixl_pair import DEADLINE, Engine, instrumented_engines, prepare
from tests.support.kv.nixl_ranks import Aggregator, engine_of, lease, modes, park, shake_hands, update

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.engine.recorder import Recorder

    MakeEngine = Callable[..., Engine]
    MakeScheduler = Callable[..., Any]

BLOCK_BYTES = 2 * schedulers.BLOCK * 64 * 4


@pytest.fixture(scope="module")
def make_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeEngine]:
    """Build instrumented engines, which live until the module is done."""
    with pytest.MonkeyPatch.context() as monkeypatch, recording(monkeypatch):
        directory = tmp_path_factory.mktemp("nixl")
        prepare(monkeypatch, directory)
        with instrumented_engines(directory, monkeypatch) as make:
            yield make


@pytest.fixture(scope="module")
def one_to_two(make_engine: MakeEngine) -> tuple[Engine, list[Engine]]:
    """Build one prefill rank and two decode ranks that have shaken hands."""
    prefill, decode = make_engine("kv_producer"), engine_of(make_engine, "kv_consumer", 2)
    shake_hands([prefill], decode)
    return prefill, decode


@pytest.fixture
def few(one_to_two: tuple[Engine, list[Engine]], recorder: Recorder) -> tuple[Engine, list[Engine]]:
    """Return the prefill rank and the two decode ranks, with nothing recorded yet."""
    assert not recorder.events
    return one_to_two


def test_two_ranks_read_from_one(few: tuple[Engine, list[Engine]], recorder: Recorder) -> None:
    """Each decode rank reads its heads; the prefill rank keeps its blocks until both have."""
    prefill, decode = few
    lease("good", [prefill])
    decode[0].read("good", prefill)
    decode[0].received("good")
    assert not prefill.step()[0].finished_sending
    decode[1].read("good", prefill)
    decode[1].received("good")
    prefill.sent("prefill-of-good")
    for rank, engine in enumerate(decode):
        assert bool((engine.cache[1:4, 0] == prefill.cache[4:7, rank]).all())
    assert sorted(each["rank"] for each in recorder.transfers) == [0, 1]
    assert [each["bytes"] for each in recorder.transfers] == [3 * BLOCK_BYTES // 2] * 2
    assert not recorder.take("transfer_failure")


def test_one_of_two_ranks_fails(
    few: tuple[Engine, list[Engine]],
    make_scheduler: MakeScheduler,
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One rank cannot read: one failure, one outcome, and the prefill rank's lease runs out for want of one reader."""
    prefill, decode = few
    scheduler = make_scheduler("sync", own="fail")
    runtime.policy.swap(policy("recompute"), 1.0)
    request, held, free = park(scheduler, prefill)
    lease("r8", [prefill])
    aggregator = Aggregator(2)
    with monkeypatch.context() as slow:
        break_agent(slow, decode[0], "check_xfer_state", lambda *_: "PROC")
        reading = decode[0].read("r8", prefill, local=held)
        with monkeypatch.context() as broken:
            break_agent(broken, decode[1], "make_prepped_xfer", refuse)
            failing = decode[1].read("r8", prefill, local=held)
        update(scheduler, aggregator.together([reading, failing]))
        for _ in range(2):
            update(scheduler, aggregator.together([rank.step() for rank in decode]))
            assert scheduler.kv_cache_manager.get_block_ids("r8") == (held,)
            assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free
    update(scheduler, aggregator.together([decode[0].received("r8"), decode[1].step()]))
    assert scheduler.schedule().num_scheduled_tokens == {"r8": request.num_prompt_tokens}
    (outcome,) = recorder.take("load_outcome", "r8")
    assert (outcome.outcome, outcome.mode) == (c.OUTCOME_RECOMPUTED, c.FAILURE_MODE_SETUP)
    (event,) = [each for each in recorder.events if each.WhichOneof("body") == "transfer_failure"]
    assert (event.rank, event.transfer_failure.peer.rank) == (1, 0)
    prefill.step_until(
        lambda _: prefill.worker.consumer_notification_counts_by_req["prefill-of-r8"], "one reader"
    )
    prefill.worker._reqs_to_send["prefill-of-r8"] = time.perf_counter() - 1.0
    assert prefill.sent("prefill-of-r8")[2].expired == ("prefill-of-r8",)
    assert modes(recorder, "prefill-of-r8") == [(c.FAILURE_MODE_EXPIRED, 0)]


def test_one_of_two_ranks_fails_and_the_other_does_not_end(
    few: tuple[Engine, list[Engine]],
    make_scheduler: MakeScheduler,
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A deadline answers the client of a request that was to be recomputed; the other rank's blocks stay until its read ends."""
    prefill, decode = few
    scheduler = make_scheduler("sync", own="fail")
    runtime.policy.swap(policy("recompute"), 1.0)
    _, held, free = park(scheduler, prefill)
    lease("r8", [prefill])
    aggregator = Aggregator(2)
    with monkeypatch.context() as slow:
        break_agent(slow, decode[0], "check_xfer_state", lambda *_: "PROC")
        reading = decode[0].read("r8", prefill, local=held)
        with monkeypatch.context() as broken:
            break_agent(broken, decode[1], "make_prepped_xfer", refuse)
            failing = decode[1].read("r8", prefill, local=held)
        update(scheduler, aggregator.together([reading, failing]))
        assert not recorder.take("load_outcome")
        given_up = [rank.cancel("r8", wait=WaitKind.TRANSFER) for rank in decode]
        update(scheduler, aggregator.together(given_up))
        (outcome,) = recorder.take("load_outcome", "r8")
        assert (outcome.outcome, outcome.mode) == (c.OUTCOME_FAILED, c.FAILURE_MODE_SETUP)
        assert scheduler.kv_cache_manager.get_block_ids("r8") == (held,)
        assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free
    update(scheduler, aggregator.together([decode[0].received("r8"), decode[1].step()]))
    assert "r8" not in scheduler.requests
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free + len(held)
    assert len(recorder.take("load_outcome", "r8")) == 1
    prefill.step_until(
        lambda _: prefill.worker.consumer_notification_counts_by_req["prefill-of-r8"], "one reader"
    )
    prefill.worker._reqs_to_send["prefill-of-r8"] = time.perf_counter() - 1.0
    prefill.sent("prefill-of-r8")


def test_a_rank_that_does_not_exist(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why a wrong ``tp_size`` is dangerous: asking for such a rank ends the thread that answers handshakes (docs/upstream.md)."""
    prefill = make_engine("kv_producer")
    errors: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    listener = prefill._listener.connector_scheduler._nixl_handshake_listener_t
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(f"tcp://{prefill.address}")
        socket.send(msgspec.msgpack.encode((b"get_meta_msg", 0, 1)))
        listener.join(DEADLINE)
    assert not listener.is_alive()
    assert [error.exc_type for error in errors] == [KeyError]


def test_the_second_rank_reads_too_late(few: tuple[Engine, list[Engine]], recorder: Recorder) -> None:
    """A lease that ran out between two readers is late for the second one only."""
    prefill, decode = few
    lease("late", [prefill])
    decode[0].read("late", prefill)
    decode[0].received("late")
    prefill.step_until(
        lambda _: prefill.worker.consumer_notification_counts_by_req["prefill-of-late"], "one reader"
    )
    prefill.worker._reqs_to_send["prefill-of-late"] = time.perf_counter() - 1.0
    prefill.sent("prefill-of-late")
    decode[1].read("late", prefill)
    decode[1].received("late")
    prefill.step_until(lambda _: len(recorder.take("transfer_failure", "prefill-of-late")) > 1, "the read")
    found = [mode for mode, _ in modes(recorder, "prefill-of-late")]
    assert found == [c.FAILURE_MODE_EXPIRED, c.FAILURE_MODE_LATE_READ]
