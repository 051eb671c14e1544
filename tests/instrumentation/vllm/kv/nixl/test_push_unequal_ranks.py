"""Push mode between engines with unequal numbers of tensor-parallel ranks: real workers, several writes for a load."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.kv.nixl.cancellation import Cancellations, CancelResult

from tests.support.engine import schedulers
from tests.support.engine.recorder import recording
from tests.support.engine.versions import from_version
from tests.support.kv.nixl_faults import break_agent, refuse
from tests.support.kv.nixl_pair import Engine, instrumented_engines, prepare
from tests.support.kv.nixl_ranks import engine_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.support.engine.recorder import Recorder

PUSH = "NixlPushConnector"
BLOCK_BYTES = 2 * schedulers.BLOCK * 64 * 4

# A request's ids at the two sides: vLLM matches them without their suffixes.
D, P = "{}-0000000d", "{}-0000000f"


@pytest.fixture(scope="module")
def make_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Engine]]:
    """Build instrumented engines, which live until the module is done."""
    with pytest.MonkeyPatch.context() as monkeypatch, recording(monkeypatch):
        directory = tmp_path_factory.mktemp("nixl")
        prepare(monkeypatch, directory)
        with instrumented_engines(directory, monkeypatch) as make:
            yield make


@pytest.fixture(scope="module")
def one_to_two(make_engine: Callable[..., Engine]) -> tuple[Engine, list[Engine]]:
    """Build one prefill rank and two decode ranks."""
    return make_engine("kv_producer", connector=PUSH), engine_of(
        make_engine, "kv_consumer", 2, connector=PUSH
    )


@pytest.fixture(scope="module")
def two_to_one(make_engine: Callable[..., Engine]) -> tuple[list[Engine], Engine]:
    """Build two prefill ranks and one decode rank."""
    return engine_of(make_engine, "kv_producer", 2, connector=PUSH), make_engine(
        "kv_consumer", connector=PUSH
    )


def until(prefill: Sequence[Engine], decode: Engine, done: Callable[[Any], object], what: str) -> None:
    """Step all until *done* of the answer of *decode* is true."""

    def stepped(answer: Any) -> object:
        for rank in prefill:
            rank.step()
        return done(answer)

    decode.step_until(stepped, what)


def written(request_id: str) -> Callable[[Any], bool]:
    """Return whether an answer says that a request's blocks are written."""
    return lambda answer: D.format(request_id) in answer[0].finished_recving


def test_one_rank_writes_to_two(one_to_two: tuple[Engine, list[Engine]], recorder: Recorder) -> None:
    """Each decode rank gets its heads in a write of its own."""
    prefill, decode = one_to_two
    for rank in decode:
        rank.await_push(D.format("good"), prefill)
    prefill.push(P.format("good"))
    for rank in decode:
        until([prefill], rank, written("good"), "the write")
    for index, engine in enumerate(decode):
        assert bool((engine.cache[1:4, 0] == prefill.cache[4:7, index]).all())
    prefill.step_until(lambda _: len(recorder.transfers) > 1, "the samples")
    assert [sample["result"] for sample in recorder.transfers] == [c.TRANSFER_RESULT_OK] * 2
    assert [sample["bytes"] for sample in recorder.transfers] == [3 * BLOCK_BYTES // 2] * 2
    assert not recorder.take("transfer_failure")


@from_version(0, 30, "takes a load that another rank has written for one that has not failed")
def test_one_of_two_writes_cannot_be_posted(
    one_to_two: tuple[Engine, list[Engine]], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure names the rank, and has the bytes of its heads only; the other rank's write goes on."""
    prefill, decode = one_to_two
    agent: Any = type(prefill.worker.nixl_wrapper).__mro__[2]
    prepare_transfer, calls = agent.make_prepped_xfer, []

    def second_refused(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return refuse() if len(calls) > 1 else prepare_transfer(*args, **kwargs)

    break_agent(monkeypatch, prefill, "make_prepped_xfer", second_refused)
    for rank in decode:
        rank.await_push(D.format("r1"), prefill)
    prefill.push(P.format("r1"))
    until([prefill], decode[0], written("r1"), "the first rank's write")
    prefill.step_until(lambda _: recorder.take("transfer_failure", P.format("r1")), "the failure")
    (failure,) = recorder.take("transfer_failure", P.format("r1"))
    assert (failure.mode, failure.peer.rank) == (c.FAILURE_MODE_SETUP, 1)
    assert (failure.blocks, failure.bytes) == (3, 3 * BLOCK_BYTES // 2)
    # What nothing writes to any more; vLLM would wait for ever.
    decode[1].worker._failed_recv_reqs.put(D.format("r1"))
    assert decode[1].received(D.format("r1"))[0].failed_recving


def test_a_rank_is_written_to_that_has_not_registered(
    one_to_two: tuple[Engine, list[Engine]], make_engine: Callable[..., Engine], recorder: Recorder
) -> None:
    """Its load cannot be given up while it waits for its handshake: the other rank's registration is for both.

    Its own one comes second and stays: vLLM writes the next request of that name to the same blocks, unasked.
    """
    _, decode = one_to_two
    prefill = make_engine("kv_producer", connector=PUSH)
    with decode[1].handshakes_held():
        for rank in decode:
            rank.await_push(D.format("r2"), prefill)
        assert not decode[1].cancel(D.format("r2"))[0].finished_recving
        assert decode[1].pinned == [D.format("r2")]
        prefill.push(P.format("r2"))
        until([prefill], decode[0], written("r2"), "the first rank's write")
        prefill.step_until(
            lambda _: bool((decode[1].cache[1:4, 0] == prefill.cache[4:7, 1]).all()),
            "the second rank's write",
        )
    # Not before: a rank that is written to before its handshake has ended dies of it (docs/upstream.md).
    prefill.step_until(lambda _: prefill.id in decode[1].worker._remote_agents, "the handshake")
    until([prefill], decode[1], written("r2"), "its end")
    # The registration that came second stays, and vLLM takes it for the next request of that name (docs/upstream.md).
    prefill.step_until(
        lambda _: D.format("r2") in prefill.worker._pending_d_registrations, "the second registration"
    )
    decode[0].cache[1:4] = decode[1].cache[1:4] = 7.0
    prefill.push("r2-0000000e")
    prefill.step_until(lambda _: not bool((decode[0].cache[1:4] == 7.0).any()), "a write without a request")
    (failure,) = recorder.take("transfer_failure", D.format("r2"))
    assert failure.mode in {c.FAILURE_MODE_TIMEOUT, c.FAILURE_MODE_COLLATERAL}
    assert [each.released for each in recorder.take("blocks_pinned", D.format("r2"))] == [False, True]


def test_two_ranks_write_to_one(two_to_one: tuple[list[Engine], Engine], recorder: Recorder) -> None:
    """The decode rank has its blocks when both have written."""
    prefill, decode = two_to_one
    decode.await_push(D.format("good"), prefill[0])
    prefill[0].push(P.format("good"))
    prefill[0].step_until(lambda _: recorder.transfers, "the first write")
    assert not decode.step()[0].finished_recving
    prefill[1].push(P.format("good"))
    until(prefill, decode, written("good"), "the writes")
    for rank, engine in enumerate(prefill):
        assert bool((decode.cache[1:4, rank] == engine.cache[4:7, 0]).all())
    prefill[1].step_until(lambda _: len(recorder.transfers) > 1, "the second sample")
    assert sorted(sample["rank"] for sample in recorder.transfers) == [0, 1]
    assert not recorder.take("transfer_failure")


@pytest.mark.parametrize(
    ("ranks", "result"),
    [
        (4, CancelResult.FAILED),
        (2, CancelResult.FAILED),
        (1, CancelResult.PINNED),
        ("2", CancelResult.PINNED),
        (None, CancelResult.PINNED),
    ],
)
def test_a_load_is_cancelled_if_no_other_rank_registers_for_it(ranks: Any, result: CancelResult) -> None:
    """Of two decode ranks, before the registration; the number of the peer's ranks is what the client says."""
    worker = SimpleNamespace(
        world_size=2,
        _recving_metadata={"r": SimpleNamespace(awaiting_kvs=True, tp_size=ranks, local_block_ids=((1,),))},
        _recving_transfers={},
        _recv_failures=set(),
        _failed_recv_reqs=queue.Queue(),
    )
    cancellations = Cancellations(push=True)
    assert cancellations.cancel(worker, "r") is result
    assert cancellations.try_register("r") is (result is CancelResult.PINNED)
    assert worker._failed_recv_reqs.empty() is (result is CancelResult.PINNED)
