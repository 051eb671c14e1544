"""Cancelling loads on real NIXL workers: blocks of a cancelled load are never written to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core.guard import guard
from penstock.instrumentation.runtime import runtime

from tests.support.engine.recorder import recording
from tests.support.engine.versions import from_version
from tests.support.kv.nixl_faults import break_agent, refuse
from tests.support.kv.nixl_pair import Engine, connect, instrumented_engines, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from tests.support.engine.recorder import Recorder

    MakeEngine = Callable[..., Engine]


@pytest.fixture(scope="module")
def make_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeEngine]:
    """Build instrumented engines, which live until the module is done."""
    with pytest.MonkeyPatch.context() as monkeypatch, recording(monkeypatch):
        directory = tmp_path_factory.mktemp("nixl")
        prepare(monkeypatch, directory)
        with instrumented_engines(directory, monkeypatch) as make:
            yield make


@pytest.fixture(scope="module")
def connected(make_engine: MakeEngine) -> tuple[Engine, Engine]:
    """Build a prefill and a decode engine that have shaken hands."""
    prefill, decode = make_engine("kv_producer"), make_engine("kv_consumer")
    connect(prefill, decode)
    return prefill, decode


@pytest.fixture
def pair(connected: tuple[Engine, Engine], recorder: Recorder) -> tuple[Engine, Engine]:
    """Return the prefill and the decode engine, with nothing recorded yet."""
    assert not recorder.events
    return connected


def test_in_flight(pair: tuple[Engine, Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read in progress keeps its blocks and handle; the timeout and the release are emitted once."""
    prefill, decode = pair
    with monkeypatch.context() as slow:
        break_agent(slow, decode, "check_xfer_state", lambda *_: "PROC")
        break_agent(slow, decode, "release_xfer_handle", refuse)
        decode.read("r1", prefill)
        assert [request_id for request_id, _ in decode.began] == ["r1"]
        assert not recorder.snapshot().held
        for _ in range(3):
            results, invalid, _ = decode.cancel("r1")
            assert not results.finished_recving
            assert not invalid
    (failure,) = recorder.take("transfer_failure", "r1")
    assert (failure.mode, failure.error_type) == (c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT)
    assert (failure.peer.address, failure.peer.engine_id, failure.blocks) == (prefill.address, prefill.id, 3)
    assert "blocks stay" in failure.error_text
    (told,) = decode.reported
    assert (told.request_id, told.mode, told.rehearsal) == ("r1", c.FAILURE_MODE_TIMEOUT, False)
    assert decode.pinned == decode.stuck == ["r1"]
    (pinned,) = recorder.take("blocks_pinned", "r1")
    assert (pinned.blocks, pinned.released, pinned.peer.address) == (3, False, prefill.address)
    (held,) = recorder.snapshot().held
    assert (held.holder, held.peer.address) == (c.BLOCK_HOLDER_PINNED, prefill.address)
    assert (held.requests, held.blocks) == (1, 3)
    assert held.oldest_start_time_unix_nano == pinned.since_time_unix_nano
    results, invalid, _ = decode.received("r1")
    assert not results.failed_recving
    assert not invalid
    assert [each.released for each in recorder.take("blocks_pinned", "r1")] == [False, True]
    assert not recorder.snapshot().held
    assert len(recorder.take("transfer_failure", "r1")) == 1


def test_done_meanwhile(pair: tuple[Engine, Engine], recorder: Recorder) -> None:
    """A load that finishes before its cancellation is successful."""
    prefill, decode = pair
    prefill.lease("prefill-of-r1")
    decode.read("r1", prefill)
    decode.received("r1")
    results, invalid, _ = decode.cancel("r1", "never-heard-of")
    assert not results.finished_recving
    assert not invalid
    assert not recorder.take("transfer_failure")
    prefill.sent("prefill-of-r1")


@from_version(0, 30, "ends its engine where a handle of a failed read cannot be released")
def test_fails_afterwards(
    pair: tuple[Engine, Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load that fails after its cancellation is one failure; a refused release keeps its blocks pinned."""
    prefill, decode = pair
    with monkeypatch.context() as slow:
        break_agent(slow, decode, "check_xfer_state", lambda *_: "PROC")
        decode.read("r1", prefill)
        decode.cancel("r1")
    break_agent(monkeypatch, decode, "check_xfer_state", lambda *_: "ERR")
    with monkeypatch.context() as refused:
        break_agent(refused, decode, "release_xfer_handle", refuse)
        assert not decode.cancel("r1")[0].finished_recving
    results, invalid, _ = decode.step()
    assert results.failed_recving == {"r1"}
    assert invalid == {1, 2, 3}
    modes = [failure.mode for failure in recorder.take("transfer_failure", "r1")]
    assert modes == [c.FAILURE_MODE_TIMEOUT, c.FAILURE_MODE_RELEASE]
    first, last = recorder.take("blocks_pinned", "r1")
    assert (first.released, last.released) == (False, True)
    assert last.since_time_unix_nano == first.since_time_unix_nano
    assert len(decode.reported) == 1


@from_version(0, 30, "ends its engine where a handle of a failed read cannot be released")
def test_refused_release(
    pair: tuple[Engine, Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of a failed transfer whose release is refused stay pinned, and an event says so."""
    prefill, decode = pair
    break_agent(monkeypatch, decode, "check_xfer_state", lambda *_: "ERR")
    with monkeypatch.context() as refused:
        break_agent(refused, decode, "release_xfer_handle", refuse)
        decode.read("r1", prefill)
        for _ in range(3):
            assert not decode.step()[0].finished_recving
    assert (decode.pinned, decode.stuck) == ([], ["r1"])
    assert decode.step()[0].failed_recving == {"r1"}
    assert [each.released for each in recorder.take("blocks_pinned", "r1")] == [False, True]


def test_waiting_for_its_handshake(
    pair: tuple[Engine, Engine], make_engine: MakeEngine, recorder: Recorder
) -> None:
    """A load cancelled before its read never reads, although its handshake succeeds; the peer releases its blocks."""
    prefill, _ = pair
    decode = make_engine("kv_consumer")
    prefill.lease("prefill-of-waits")
    decode.cache[1:4] = 7.0
    with decode.handshakes_held():
        decode.read("waits", prefill)
        results, invalid, _ = decode.cancel("waits")
        assert results.failed_recving == {"waits"}
        assert invalid == {1, 2, 3}
        assert not decode.cancel("waits")[0].finished_recving
    decode.step_until(lambda _: prefill.id in decode.worker._remote_agents, "the handshake")
    prefill.step_until(
        lambda answer: decode.step() and "prefill-of-waits" in answer[0].finished_sending, "the peer lets go"
    )
    assert bool((decode.cache[1:4] == 7.0).all())
    assert not recorder.transfers
    assert not decode.began
    (failure,) = recorder.take("transfer_failure", "waits")
    assert (failure.mode, failure.attempt, failure.blocks) == (c.FAILURE_MODE_COLLATERAL, 1, 3)
    assert [(told.mode, told.culprit) for told in decode.reported] == [(c.FAILURE_MODE_COLLATERAL, None)]
    assert not recorder.take("transfer_failure", "prefill-of-waits")


def test_waiting_for_a_handshake_that_fails(
    pair: tuple[Engine, Engine], make_engine: MakeEngine, recorder: Recorder
) -> None:
    """A handshake that fails after its load was cancelled is a failure of the peer, not a second one of the load."""
    prefill, _ = pair
    decode = make_engine("kv_consumer")
    with decode.handshakes_held():
        decode.read("r1", prefill, engine_id="the-former-engine")
        assert decode.cancel("r1")[0].failed_recving == {"r1"}
    # Each is reported on the handshake's thread, one after the other.
    decode.step_until(
        lambda _: recorder.take("handshake") and recorder.take("transfer_failure", ""),
        "handshake and failure",
    )
    assert [each.mode for each in recorder.take("transfer_failure", "r1")] == [c.FAILURE_MODE_COLLATERAL]
    (failure,) = recorder.take("transfer_failure", "")
    assert (failure.mode, failure.peer.address) == (c.FAILURE_MODE_HANDSHAKE, prefill.address)
    assert len(decode.reported) == 1


def test_paused(pair: tuple[Engine, Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """While paused no load is cancelled."""
    prefill, decode = pair
    with monkeypatch.context() as slow:
        break_agent(slow, decode, "check_xfer_state", lambda *_: "PROC")
        decode.read("r1", prefill)
        runtime.pause("test", paused=True)
        try:
            assert not decode.cancel("r1")[0].finished_recving
        finally:
            runtime.pause("test", paused=False)
    decode.received("r1")
    assert not recorder.events


def test_an_error_in_one(
    pair: tuple[Engine, Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of Penstock's own in one cancellation does not keep the next one from being made."""
    prefill, decode = pair
    cancellations = decode.worker._penstock.cancellations
    cancel = cancellations.cancel

    def broken(worker: Any, request_id: str) -> Any:
        if request_id == "broken":
            raise RuntimeError("a mistake")
        return cancel(worker, request_id)

    for request_id in ("broken", "next"):
        prefill.lease(f"prefill-of-{request_id}")
    with monkeypatch.context() as slow:
        break_agent(slow, decode, "check_xfer_state", lambda *_: "PROC")
        slow.setattr(guard, "raising", False)
        slow.setattr(cancellations, "cancel", broken)
        decode.read("broken", prefill)
        decode.read("next", prefill, local=(4, 5, 6))
        decode.cancel("broken", "next")
    assert decode.pinned == ["next"]
    assert not recorder.take("transfer_failure", "broken")
    assert len(recorder.take("transfer_failure", "next")) == 1
    for request_id in ("broken", "next"):
        decode.received(request_id)
        prefill.sent(f"prefill-of-{request_id}")
