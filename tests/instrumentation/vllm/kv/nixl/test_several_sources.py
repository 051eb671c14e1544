"""A decode rank that reads from two prefill ranks: a load is two reads, and one failure and one outcome all the same."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.rules.deadlines import WaitKind

from tests.support.engine import schedulers
from tests.support.engine.recorder import policy, recording
from tests.support.engine.versions import from_version
from tests.support.kv.nixl_faults import break_agent, break_handles, refuse
from tests.support.kv.nixl_pair import Engine, instrumented_engines, prepare
from tests.support.kv.nixl_ranks import Aggregator, engine_of, lease, modes, park, shake_hands, update

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.support.engine.recorder import Recorder

    MakeEngine = Callable[..., Engine]
    MakeScheduler = Callable[..., Any]

BLOCK_BYTES = 2 * schedulers.BLOCK * 64 * 4

_SEVERAL_FAIL = from_version(0, 30, "ends its engine where one of several reads fails before the other")


@pytest.fixture(scope="module")
def make_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeEngine]:
    """Build instrumented engines, which live until the module is done."""
    with pytest.MonkeyPatch.context() as monkeypatch, recording(monkeypatch):
        directory = tmp_path_factory.mktemp("nixl")
        prepare(monkeypatch, directory)
        with instrumented_engines(directory, monkeypatch) as make:
            yield make


@pytest.fixture(scope="module")
def two_to_one(make_engine: MakeEngine) -> tuple[list[Engine], Engine]:
    """Build two prefill ranks and one decode rank that have shaken hands."""
    prefill, decode = engine_of(make_engine, "kv_producer", 2), make_engine("kv_consumer")
    shake_hands(prefill, [decode])
    return prefill, decode


@pytest.fixture
def many(two_to_one: tuple[list[Engine], Engine], recorder: Recorder) -> tuple[list[Engine], Engine]:
    """Return the two prefill ranks and the decode rank, with nothing recorded yet."""
    assert not recorder.events
    return two_to_one


def begin(
    many: tuple[list[Engine], Engine],
    request_id: str,
    monkeypatch: pytest.MonkeyPatch,
    local: Sequence[int] = (1, 2, 3),
) -> list[Any]:
    """Let the decode rank begin to read; return the two handles, in the order of the prefill ranks."""
    prefill, decode = many
    lease(request_id, prefill)
    with monkeypatch.context() as slow:
        break_agent(slow, decode, "check_xfer_state", lambda *_: "PROC")
        decode.read(request_id, prefill[0], local=local)
    handles = list(decode.worker._recving_transfers[request_id])
    assert len(handles) == 2
    return handles


def states(monkeypatch: pytest.MonkeyPatch, decode: Engine, *pairs: tuple[Any, str]) -> None:
    """Let transfers be in these states, whatever NIXL says."""
    replaced = [(handle, partial(str, state)) for handle, state in pairs]
    break_handles(monkeypatch, decode, "check_xfer_state", replaced)


def results(recorder: Recorder, request_id: str) -> list[int]:
    """Return the results of a request's transfers, sorted."""
    return sorted(each["result"] for each in recorder.transfers if each["request_id"] == request_id)


def test_two_reads_are_one_load(
    many: tuple[list[Engine], Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each prefill rank gives its heads in a transfer of its own and is notified; the load begins once."""
    prefill, decode = many
    begin(many, "good", monkeypatch)
    snapshot = recorder.snapshot()
    assert [flow.count for flow in snapshot.in_flight] == [2]
    assert [request_id for request_id, _ in decode.began] == ["good"]
    decode.received("good")
    for rank, engine in enumerate(prefill):
        assert bool((decode.cache[1:4, rank] == engine.cache[4:7, 0]).all())
        engine.sent("prefill-of-good")
    assert results(recorder, "good") == [c.TRANSFER_RESULT_OK] * 2
    assert sum(each["bytes"] for each in recorder.transfers) == 3 * BLOCK_BYTES
    assert not recorder.take("transfer_failure")
    assert not recorder.snapshot().in_flight


@_SEVERAL_FAIL
def test_one_read_fails(
    many: tuple[list[Engine], Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load fails once, for the whole of its blocks, and ends with the other read; it names the rank that failed."""
    prefill, decode = many
    first, second = begin(many, "r1", monkeypatch)
    with monkeypatch.context() as broken:
        states(broken, decode, (first, "PROC"), (second, "ERR"))
        for _ in range(3):
            assert not decode.step()[0].finished_recving
        snapshot = recorder.snapshot()
        assert [flow.count for flow in snapshot.in_flight] == [1]
        assert not snapshot.held  # not pinned; that the load holds them, the scheduler reports
    (failure,) = recorder.take("transfer_failure", "r1")
    assert (failure.mode, failure.peer.rank) == (c.FAILURE_MODE_TRANSFER, 1)
    assert (failure.peer.address, failure.blocks) == (prefill[0].address, 3)
    assert failure.bytes == 3 * BLOCK_BYTES
    del first, second
    ended, invalid, _ = decode.received("r1")
    assert ended.failed_recving == {"r1"}
    assert invalid == {1, 2, 3}
    assert [told.mode for told in decode.reported] == [c.FAILURE_MODE_TRANSFER]
    assert len(recorder.take("transfer_failure", "r1")) == 1
    assert results(recorder, "r1") == sorted([c.TRANSFER_RESULT_OK, c.TRANSFER_RESULT_ERROR])


@_SEVERAL_FAIL
def test_both_reads_fail(
    many: tuple[list[Engine], Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load of which every read fails is one failure, of the rank that came first."""
    _, decode = many
    first, second = begin(many, "r2", monkeypatch)
    with monkeypatch.context() as broken:
        states(broken, decode, (first, "ERR"), (second, "ERR"))
        assert decode.step()[0].failed_recving == {"r2"}
    assert modes(recorder, "r2") == [(c.FAILURE_MODE_TRANSFER, 0)]
    assert len(decode.reported) == 1
    assert results(recorder, "r2") == [c.TRANSFER_RESULT_ERROR] * 2


@_SEVERAL_FAIL
def test_one_fails_and_its_release_is_refused(
    many: tuple[list[Engine], Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks stay as long as NIXL keeps the handle, although the other read has ended well; there is one failure and one refusal."""
    _, decode = many
    first, second = begin(many, "r3", monkeypatch)
    with monkeypatch.context() as broken:
        states(broken, decode, (first, "ERR"), (second, "DONE"))
        with monkeypatch.context() as refused:
            break_handles(refused, decode, "release_xfer_handle", [(first, refuse)])
            for _ in range(3):
                assert not decode.step()[0].finished_recving
            snapshot = recorder.snapshot()
            assert [flow.count for flow in snapshot.in_flight] == [1]
            assert [(held.holder, held.blocks) for held in snapshot.held] == [(c.BLOCK_HOLDER_PINNED, 3)]
        assert decode.step()[0].failed_recving == {"r3"}
    assert modes(recorder, "r3") == [(c.FAILURE_MODE_TRANSFER, 0), (c.FAILURE_MODE_RELEASE, 0)]
    assert [each.released for each in recorder.take("blocks_pinned", "r3")] == [False, True]
    assert len(decode.reported) == 1
    assert results(recorder, "r3") == sorted([c.TRANSFER_RESULT_OK, c.TRANSFER_RESULT_ERROR])


@_SEVERAL_FAIL
def test_one_fails_and_the_release_of_the_other_is_refused(
    many: tuple[list[Engine], Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal names the rank whose handle it is; the read that it belongs to has ended, and well."""
    _, decode = many
    first, second = begin(many, "r4", monkeypatch)
    with monkeypatch.context() as broken:
        states(broken, decode, (first, "ERR"), (second, "DONE"))
        with monkeypatch.context() as refused:
            break_handles(refused, decode, "release_xfer_handle", [(second, refuse)])
            for _ in range(3):
                assert not decode.step()[0].finished_recving
            snapshot = recorder.snapshot()
            assert not snapshot.in_flight
            assert [(held.holder, held.blocks) for held in snapshot.held] == [(c.BLOCK_HOLDER_PINNED, 3)]
        assert decode.step()[0].failed_recving == {"r4"}
    assert modes(recorder, "r4") == [(c.FAILURE_MODE_TRANSFER, 0), (c.FAILURE_MODE_RELEASE, 1)]
    assert [each.released for each in recorder.take("blocks_pinned", "r4")] == [False, True]
    assert results(recorder, "r4") == sorted([c.TRANSFER_RESULT_OK, c.TRANSFER_RESULT_ERROR])


@_SEVERAL_FAIL
def test_the_second_read_cannot_be_posted(
    many: tuple[list[Engine], Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first read goes on and keeps the blocks; its rank is notified, the other one's lease stays."""
    prefill, decode = many
    lease("r5", prefill)
    agent: Any = type(decode.worker.nixl_wrapper).__mro__[2]
    prepare_transfer, calls = agent.make_prepped_xfer, []

    def second_refused(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return refuse() if len(calls) > 1 else prepare_transfer(*args, **kwargs)

    with monkeypatch.context() as broken:
        break_agent(broken, decode, "check_xfer_state", lambda *_: "PROC")
        break_agent(broken, decode, "make_prepped_xfer", second_refused)
        assert not decode.read("r5", prefill[0])[0].finished_recving
        assert not decode.step()[0].finished_recving
        assert [flow.count for flow in recorder.snapshot().in_flight] == [1]
    assert decode.received("r5")[0].failed_recving == {"r5"}
    assert modes(recorder, "r5") == [(c.FAILURE_MODE_SETUP, 1)]
    assert results(recorder, "r5") == [c.TRANSFER_RESULT_OK]
    prefill[0].sent("prefill-of-r5")
    assert not prefill[1].step()[0].finished_sending


@_SEVERAL_FAIL
def test_a_failed_load_has_a_deadline_too(
    many: tuple[list[Engine], Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load that has failed waits for its other read: over the deadline the scheduler hears once that it cannot be given up."""
    _, decode = many
    first, second = begin(many, "r6", monkeypatch)
    with monkeypatch.context() as broken:
        states(broken, decode, (first, "ERR"), (second, "PROC"))
        decode.step()
        for _ in range(3):
            assert not decode.cancel("r6", wait=WaitKind.TRANSFER)[0].finished_recving
        assert decode.pinned == ["r6"]
        (held,) = recorder.snapshot().held
        assert (held.holder, held.blocks) == (c.BLOCK_HOLDER_PINNED, 3)
    decode.received("r6")
    assert modes(recorder, "r6") == [(c.FAILURE_MODE_TRANSFER, 0)]
    assert len(decode.reported) == 1
    assert [each.released for each in recorder.take("blocks_pinned", "r6")] == [False, True]


@_SEVERAL_FAIL
def test_a_refused_release_has_a_deadline_too(
    many: tuple[list[Engine], Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that a refused release has pinned are reported as pinned to the scheduler when it gives the load up."""
    _, decode = many
    first, second = begin(many, "r7", monkeypatch)
    with monkeypatch.context() as broken:
        states(broken, decode, (first, "ERR"), (second, "DONE"))
        break_handles(broken, decode, "release_xfer_handle", [(first, refuse)])
        decode.step()
        assert not decode.pinned
        for _ in range(3):
            decode.cancel("r7", wait=WaitKind.TRANSFER)
        assert decode.pinned == ["r7"]
    decode.received("r7")
    assert len(decode.reported) == 1
    assert [each.released for each in recorder.take("blocks_pinned", "r7")] == [False, True]


@_SEVERAL_FAIL
def test_a_policy_recomputes_once_the_other_read_has_ended(
    many: tuple[list[Engine], Engine],
    make_scheduler: MakeScheduler,
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No block is let go under the second read; then the whole prompt is computed here, with one outcome."""
    prefill, decode = many
    scheduler = make_scheduler("sync", own="fail")
    runtime.policy.swap(policy("recompute"), 1.0)
    request, held, free = park(scheduler, prefill[0])
    first, second = begin(many, "r8", monkeypatch, local=held)
    aggregator = Aggregator(1)
    with monkeypatch.context() as broken:
        states(broken, decode, (first, "ERR"), (second, "PROC"))
        for _ in range(2):
            update(scheduler, aggregator.together([decode.step()]))
            assert scheduler.kv_cache_manager.get_block_ids("r8") == (held,)
            assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free
            assert not recorder.take("load_outcome")
    update(scheduler, aggregator.together([decode.received("r8")]))
    scheduled = scheduler.schedule()
    assert scheduled.num_scheduled_tokens == {"r8": request.num_prompt_tokens}
    (outcome,) = recorder.take("load_outcome", "r8")
    assert (outcome.outcome, outcome.mode) == (c.OUTCOME_RECOMPUTED, c.FAILURE_MODE_TRANSFER)
    assert outcome.tokens_recomputed == request.num_prompt_tokens


@_SEVERAL_FAIL
def test_a_deadline_fails_a_load_that_has_failed(
    many: tuple[list[Engine], Engine],
    make_scheduler: MakeScheduler,
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client has its answer, of the first failure; the blocks stay until the second read has ended."""
    prefill, decode = many
    scheduler = make_scheduler("sync", own="fail")
    runtime.policy.swap(policy("recompute"), 1.0)
    _, held, free = park(scheduler, prefill[0])
    first, second = begin(many, "r8", monkeypatch, local=held)
    aggregator = Aggregator(1)
    with monkeypatch.context() as broken:
        states(broken, decode, (first, "ERR"), (second, "PROC"))
        update(scheduler, aggregator.together([decode.step()]))
        update(scheduler, aggregator.together([decode.cancel("r8", wait=WaitKind.TRANSFER)]))
        (outcome,) = recorder.take("load_outcome", "r8")
        assert (outcome.outcome, outcome.mode) == (c.OUTCOME_FAILED, c.FAILURE_MODE_TRANSFER)
        assert scheduler.kv_cache_manager.get_block_ids("r8") == (held,)
        assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free
    update(scheduler, aggregator.together([decode.received("r8")]))
    assert "r8" not in scheduler.requests
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free + len(held)
    assert len(recorder.take("load_outcome", "r8")) == 1
    assert len(recorder.take("transfer_failure", "r8")) == 1


def test_a_load_that_is_given_up_before_it_reads_frees_both_ranks(
    many: tuple[list[Engine], Engine], make_engine: MakeEngine, recorder: Recorder
) -> None:
    """A load that was cancelled in the handshake's queue notifies each rank of the peer and reads from none."""
    prefill, _ = many
    decode = make_engine("kv_consumer")
    lease("r9", prefill)
    with decode.handshakes_held():
        decode.read("r9", prefill[0])
        assert decode.cancel("r9")[0].failed_recving == {"r9"}
    for rank in prefill:
        rank.both_until(decode, lambda mine, _: "prefill-of-r9" in mine[0].finished_sending, "its release")
    assert not recorder.transfers
    assert len(recorder.take("transfer_failure", "r9")) == 1
