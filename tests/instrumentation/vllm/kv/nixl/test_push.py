"""Push mode on real NIXL workers: the prefill side writes; registrations, failures and cancellation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c

from tests.support.engine.recorder import recording
from tests.support.engine.versions import from_version
from tests.support.kv.nixl_faults import break_agent, refuse
from tests.support.kv.nixl_pair import Engine, instrumented_engines, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.engine.recorder import Recorder

    MakeEngine = Callable[..., Engine]

PUSH = "NixlPushConnector"

# A request's ids at the two sides: vLLM matches them without their suffixes.
D, P = "{}-0000000d", "{}-0000000f"


@pytest.fixture(scope="module")
def make_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeEngine]:
    """Build instrumented engines, which live until the module is done."""
    with pytest.MonkeyPatch.context() as monkeypatch, recording(monkeypatch):
        directory = tmp_path_factory.mktemp("nixl")
        prepare(monkeypatch, directory)
        with instrumented_engines(directory, monkeypatch) as make:
            yield make


@pytest.fixture(scope="module")
def built(make_engine: MakeEngine) -> tuple[Engine, Engine]:
    """Build a prefill and a decode engine."""
    return make_engine("kv_producer", connector=PUSH), make_engine("kv_consumer", connector=PUSH)


@pytest.fixture
def pair(built: tuple[Engine, Engine], recorder: Recorder) -> tuple[Engine, Engine]:
    """Return the prefill and the decode engine, with nothing recorded yet."""
    assert not recorder.events
    return built


def failures_of(recorder: Recorder, *request_ids: str) -> list[Any]:
    """Return the failures of these requests."""
    return [body for each in request_ids for body in recorder.take("transfer_failure", each)]


def test_good_push(pair: tuple[Engine, Engine], recorder: Recorder) -> None:
    """A write is one sample of the prefill side, with its peer; the reader's request is done."""
    prefill, decode = pair
    decode.await_push(D.format("good"), prefill)
    prefill.push(P.format("good"))
    prefill.both_until(decode, lambda _, theirs: D.format("good") in theirs[0].finished_recving, "the write")
    assert bool((decode.cache[1:4] == prefill.cache[4:7]).all())
    prefill.both_until(decode, lambda _, __: recorder.transfers, "the sample")
    (sample,) = recorder.transfers
    assert (sample["direction"], sample["result"]) == (c.DIRECTION_SEND, c.TRANSFER_RESULT_OK)
    assert (sample["peer"], sample["request_id"]) == (decode.address, P.format("good"))
    assert not recorder.take("transfer_failure")


def test_a_write_that_cannot_be_posted(
    pair: tuple[Engine, Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that fails is one failure of the prefill side, with its peer and its size."""
    prefill, decode = pair
    break_agent(monkeypatch, prefill, "make_prepped_xfer", refuse)
    decode.await_push(D.format("r1"), prefill)
    prefill.push(P.format("r1"))
    prefill.both_until(decode, lambda _, __: recorder.take("transfer_failure"), "the failure")
    (failure,) = failures_of(recorder, P.format("r1"))
    assert (failure.mode, failure.direction) == (c.FAILURE_MODE_SETUP, c.DIRECTION_SEND)
    assert (failure.peer.address, failure.blocks) == (decode.address, 3)
    assert failure.bytes > 0


@from_version(0, 30, "ends its engine where a write fails on the way")
def test_a_write_in_a_bad_state(
    pair: tuple[Engine, Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Polling knows only the request; the failure has the peer and the size of the write."""
    prefill, decode = pair
    break_agent(monkeypatch, prefill, "check_xfer_state", lambda *_: "ERR")
    decode.await_push(D.format("r2"), prefill)
    prefill.push(P.format("r2"))
    prefill.both_until(decode, lambda _, __: recorder.take("transfer_failure"), "the failure")
    (failure,) = failures_of(recorder, P.format("r2"))
    assert (failure.mode, failure.direction) == (c.FAILURE_MODE_TRANSFER, c.DIRECTION_SEND)
    assert (failure.peer.address, failure.blocks) == (decode.address, 3)


def test_a_writer_that_stumbles(
    pair: tuple[Engine, Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that vLLM's writer thread only logs is a failure of its request."""
    prefill, decode = pair
    monkeypatch.setattr(type(prefill.worker).__mro__[-3], "_xfer_blocks_for_req", refuse)
    decode.await_push(D.format("r3"), prefill)
    prefill.push(P.format("r3"))
    prefill.both_until(decode, lambda _, __: recorder.take("transfer_failure"), "the failure")
    (failure,) = failures_of(recorder, P.format("r3"))
    assert (failure.mode, failure.upstream_type) == (c.FAILURE_MODE_SETUP, "push_setup_failed")


def test_cancel_before_the_registration(
    pair: tuple[Engine, Engine], make_engine: MakeEngine, recorder: Recorder
) -> None:
    """A load cancelled before its registration is never written to."""
    prefill, _ = pair
    decode = make_engine("kv_consumer", connector=PUSH)
    decode.cache[1:4] = 7.0
    with decode.handshakes_held():
        decode.await_push(D.format("r4"), prefill)
        decode.step_until(lambda _: decode.worker._handshake_futures, "the handshake is asked for")
        assert decode.cancel(D.format("r4"))[0].failed_recving == {D.format("r4")}
    decode.step_until(lambda _: prefill.id in decode.worker._remote_agents, "the handshake")
    decode.step_until(
        lambda _: not decode.worker._penstock.cancellations._withheld, "the registration is held back"
    )
    prefill.push(P.format("r4"))
    prefill.step()
    assert bool((decode.cache[1:4] == 7.0).all())
    (failure,) = failures_of(recorder, D.format("r4"))
    assert (failure.mode, failure.direction) == (c.FAILURE_MODE_COLLATERAL, c.DIRECTION_RECEIVE)
    assert not recorder.transfers


def test_cancel_after_the_registration(pair: tuple[Engine, Engine], recorder: Recorder) -> None:
    """After the registration the blocks stay pinned; an event is emitted then and at their release."""
    prefill, decode = pair
    decode.await_push(D.format("r5"), prefill)
    decode.step_until(
        lambda _: D.format("r5") in decode.worker._penstock.cancellations._registered, "the registration"
    )
    for _ in range(2):
        assert not decode.cancel(D.format("r5"))[0].finished_recving
    (pinned,) = recorder.take("blocks_pinned", D.format("r5"))
    assert (pinned.blocks, pinned.released, pinned.peer.address) == (3, False, prefill.address)
    prefill.push(P.format("r5"))
    prefill.both_until(decode, lambda _, theirs: D.format("r5") in theirs[0].finished_recving, "the write")
    assert [each.released for each in recorder.take("blocks_pinned", D.format("r5"))] == [False, True]
    assert [failure.mode for failure in failures_of(recorder, D.format("r5"))] == [c.FAILURE_MODE_TIMEOUT]


def test_a_write_without_a_receiver(pair: tuple[Engine, Engine], recorder: Recorder) -> None:
    """A completed write that no request waits for is a late write."""
    _, decode = pair
    decode.worker._pending_completion_notifs.put(b"gone:1")
    decode.step()
    (failure,) = failures_of(recorder, "gone")
    assert (failure.mode, failure.error_type) == (c.FAILURE_MODE_LATE_READ, c.ERROR_TYPE_CORRUPT)
