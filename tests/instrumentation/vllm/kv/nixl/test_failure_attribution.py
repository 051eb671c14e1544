"""Attribution of loads cancelled while they wait for their handshake, on real NIXL workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.kv.nixl.failure_attribution import (
    BlockingPeer,
    HandshakeTurn,
    HandshakeWait,
)
from penstock.instrumentation.vllm.naming.peers import Peer
from penstock.rules.deadlines import WaitKind

from demo.common.processes import free_port
from tests.support.engine.recorder import recording
from tests.support.kv.nixl_faults import break_agent
from tests.support.kv.nixl_pair import HOST, Engine, connect, instrumented_engines, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.engine.recorder import Recorder

    MakeEngine = Callable[..., Engine]

SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def make_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeEngine]:
    """Build instrumented engines, which live until the module is done."""
    with pytest.MonkeyPatch.context() as monkeypatch, recording(monkeypatch):
        directory = tmp_path_factory.mktemp("nixl")
        prepare(monkeypatch, directory)
        with instrumented_engines(directory, monkeypatch) as make:
            yield make


@pytest.fixture(scope="module")
def prefill(make_engine: MakeEngine) -> Engine:
    """Build a healthy prefill engine that no decode engine has met."""
    return make_engine("kv_producer")


def running(decode: Engine) -> bool:
    """Return whether a handshake of *decode* is running, and is known to: its future runs a moment earlier."""
    return decode.worker._penstock.handshakes._running is not None


def test_behind_a_dead_peer(make_engine: MakeEngine, prefill: Engine, recorder: Recorder) -> None:
    """A load whose handshake never started is collateral of the dead peer that blocked it."""
    decode, dead = make_engine("kv_consumer"), free_port()
    decode.read("dead", prefill, port=dead, engine_id="dead-engine", local=(5,), remote=(5,))
    decode.step_until(lambda _: running(decode), "the handshake with the dead peer")
    decode.read("good", prefill)
    assert decode.cancel("good")[0].failed_recving == {"good"}

    (failure,) = recorder.take("transfer_failure", "good")
    assert (failure.mode, failure.error_type) == (c.FAILURE_MODE_COLLATERAL, c.ERROR_TYPE_TIMEOUT)
    assert (failure.peer.address, failure.caused_by_peer.address) == (prefill.address, f"{HOST}:{dead}")
    assert failure.caused_by_request_id == "dead"
    assert "its own handshake never began" in failure.error_text
    (reported,) = decode.reported
    assert (reported.mode, reported.peer.address) == (c.FAILURE_MODE_COLLATERAL, prefill.address)
    assert (reported.culprit.peer.address, reported.culprit.mode) == (
        f"{HOST}:{dead}",
        c.FAILURE_MODE_TIMEOUT,
    )
    (delayed,) = recorder.take("transfer_delayed", "good")
    assert (delayed.caused_by_peer.address, delayed.handshake_id) == (f"{HOST}:{dead}", failure.handshake_id)

    decode.received("dead")
    decode.step_until(lambda _: prefill.id in decode.worker._remote_agents, "the handshake")
    assert [each.mode for each in recorder.take("transfer_failure", "dead")] == [c.FAILURE_MODE_HANDSHAKE]
    assert next(each.id for each in recorder.take("handshake")) == failure.handshake_id
    assert len(recorder.take("transfer_failure", "good")) == 1
    assert len(recorder.take("transfer_delayed", "good")) == 1


@pytest.mark.parametrize(
    ("wait", "mode", "culprit"),
    [
        (WaitKind.START, c.FAILURE_MODE_COLLATERAL, "dead:1"),
        (WaitKind.TRANSFER, c.FAILURE_MODE_TIMEOUT, ""),
    ],
)
def test_just_begun(
    wait: WaitKind, mode: int, culprit: str, make_engine: MakeEngine, prefill: Engine, recorder: Recorder
) -> None:
    """A read that starts at its deadline is collateral; one that is slow itself is not."""
    decode = make_engine("kv_consumer")
    connect(prefill, decode)
    recorder.events.clear()
    turn = HandshakeTurn(Peer("dead:1"), 4711, "first", 0, 9 * SECOND, failed=True)
    waited = HandshakeWait(0, 10 * SECOND, started=True, blockers=(BlockingPeer(9 * SECOND, turn),))
    with pytest.MonkeyPatch.context() as patch:
        break_agent(patch, decode, "check_xfer_state", lambda *_: "PROC")
        patch.setattr(decode.worker._penstock.handshakes, "abandon", lambda *_: waited)
        decode.read("late", prefill)
        decode.cancel("late", wait=wait)
    (failure,) = recorder.take("transfer_failure", "late")
    assert (failure.mode, failure.peer.address) == (mode, prefill.address)
    assert failure.caused_by_peer.address == culprit
    assert decode.pinned == ["late"]
    decode.received("late")
