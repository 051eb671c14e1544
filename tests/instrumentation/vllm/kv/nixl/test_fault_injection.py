"""Fault drills on real NIXL workers: vLLM's own failure path runs, and all that follows is marked as a rehearsal."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core.settings import Settings
from penstock.instrumentation.orders import SLOW, Drill, DrillRefusedError
from penstock.instrumentation.runtime import runtime

from tests.support.engine.recorder import recording
from tests.support.kv.nixl_pair import DEADLINE, Engine, connect, instrumented_engines, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.engine.recorder import Recorder

    MakeEngine = Callable[..., Engine]

SECOND = 1_000_000_000
ALLOWED = Settings(endpoint="unix:///nowhere/ingest.sock", allow_faults=True)


@pytest.fixture(scope="module")
def make_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeEngine]:
    """Build instrumented engines that allow faults, which live until the module is done."""
    with pytest.MonkeyPatch.context() as monkeypatch, recording(monkeypatch):
        directory = tmp_path_factory.mktemp("nixl")
        prepare(monkeypatch, directory)
        runtime.configure(ALLOWED)
        with instrumented_engines(directory, monkeypatch) as make:
            yield make


@pytest.fixture(scope="module")
def connected(make_engine: MakeEngine) -> tuple[Engine, Engine]:
    """Build a prefill and a decode engine that have shaken hands."""
    prefill, decode = make_engine("kv_producer"), make_engine("kv_consumer")
    connect(prefill, decode)
    return prefill, decode


@pytest.fixture
def pair(connected: tuple[Engine, Engine], recorder: Recorder) -> Iterator[tuple[Engine, Engine]]:
    """Return the prefill and the decode engine, with nothing recorded yet and no drill afterwards."""
    assert not recorder.events
    runtime.configure(ALLOWED)
    yield connected
    connected[1].drill()


def drill(mode: int, peer: Engine, **changes: Any) -> Drill:
    """Return a drill that hits every attempt with that peer."""
    made = Drill("d1", c.CHANNEL_KV, mode, 1.0, 60 * SECOND, peer.address)
    return replace(made, **changes)


def only_rehearsals(recorder: Recorder) -> bool:
    """Return whether there are events, all marked as rehearsals."""
    return bool(recorder.events) and all(event.rehearsal for event in recorder.events)


@pytest.mark.parametrize(
    ("mode", "upstream"),
    [
        (c.FAILURE_MODE_SETUP, "transfer_setup_failed"),
        (c.FAILURE_MODE_TRANSFER, "transfer_failed"),
        (c.FAILURE_MODE_EXCEPTION, "transfer_exception"),
    ],
)
def test_transfers(pair: tuple[Engine, Engine], recorder: Recorder, mode: int, upstream: str) -> None:
    """A hit transfer fails once by vLLM's own path, and is reported to the scheduler as a rehearsal."""
    prefill, decode = pair
    decode.drill(drill(mode, prefill))
    decode.read("r1", prefill)
    results, invalid, _ = decode.received("r1")
    assert results.failed_recving == {"r1"}
    assert invalid == {1, 2, 3}
    (failure,) = recorder.take("transfer_failure", "r1")
    assert (failure.mode, failure.upstream_type, failure.peer.address) == (mode, upstream, prefill.address)
    assert [told.rehearsal for told in decode.reported] == [True]
    assert only_rehearsals(recorder)
    decode.drill()
    prefill.lease("prefill-of-r2")
    decode.read("r2", prefill)
    assert not decode.received("r2")[0].failed_recving
    prefill.sent("prefill-of-r2")


def test_handshake(pair: tuple[Engine, Engine], make_engine: MakeEngine, recorder: Recorder) -> None:
    """A hit handshake fails for all its waiters; the next one, without the drill, succeeds."""
    prefill, _ = pair
    decode = make_engine("kv_consumer")
    decode.drill(drill(c.FAILURE_MODE_HANDSHAKE, prefill))
    decode.read("r1", prefill)
    assert decode.received("r1")[0].failed_recving == {"r1"}
    (failure,) = recorder.take("transfer_failure", "r1")
    assert (failure.mode, failure.upstream_type) == (c.FAILURE_MODE_HANDSHAKE, "handshake_failed")
    assert failure.error_class == "RehearsedFaultError"
    assert only_rehearsals(recorder)
    assert [told.rehearsal for told in decode.reported] == [True]
    decode.drill()
    prefill.lease("prefill-of-r2")
    decode.read("r2", prefill)
    assert not decode.received("r2")[0].failed_recving
    assert not [event for event in recorder.events if event.request_id == "r2" and event.rehearsal]


def test_a_slow_handshake_delays_others(
    pair: tuple[Engine, Engine], make_engine: MakeEngine, recorder: Recorder
) -> None:
    """A request that waits behind another peer's handshake gets an event with the delay and its cause."""
    prefill, _ = pair
    sick, decode = make_engine("kv_producer"), make_engine("kv_consumer")
    decode.drill(drill(c.FAILURE_MODE_HANDSHAKE, sick, delay_ns=SECOND // 2))
    prefill.lease("prefill-of-good")
    decode.read("sick", sick, local=(5,), remote=(5,))
    decode.read("good", prefill)
    assert not decode.received("good")[0].failed_recving
    (delayed,) = recorder.take("transfer_delayed", "good")
    assert (delayed.peer.address, delayed.caused_by_peer.address) == (prefill.address, sick.address)
    assert delayed.delay_nano > SECOND // 10
    of_the_sick = [each for each in recorder.take("handshake") if each.peer.address == sick.address]
    assert [each.id for each in of_the_sick] == [delayed.handshake_id]
    assert not recorder.take("transfer_failure", "good")
    assert not recorder.take("transfer_delayed", "sick")


def test_a_lost_notification(pair: tuple[Engine, Engine], recorder: Recorder) -> None:
    """A read with a dropped notification succeeds, and its peer's lease expires."""
    prefill, decode = pair
    decode.drill(drill(c.FAILURE_MODE_NOTIFICATION, prefill))
    prefill.lease("prefill-of-r1")
    decode.read("r1", prefill)
    results, _, _ = decode.received("r1")
    assert not results.failed_recving
    (failure,) = recorder.take("transfer_failure", "r1")
    assert (failure.mode, failure.peer.address) == (c.FAILURE_MODE_NOTIFICATION, prefill.address)
    assert not decode.reported
    prefill.worker._reqs_to_send["prefill-of-r1"] = time.perf_counter() - 1.0
    prefill.sent("prefill-of-r1")
    (expired,) = recorder.take("transfer_failure", "prefill-of-r1")
    assert expired.mode == c.FAILURE_MODE_EXPIRED


def test_a_notification_of_its_own(pair: tuple[Engine, Engine], recorder: Recorder) -> None:
    """A hit notification without a read fails by vLLM's own path."""
    prefill, decode = pair
    decode.drill(drill(c.FAILURE_MODE_NOTIFICATION, prefill))
    decode.read("r1", prefill, local=())
    (failure,) = recorder.take("transfer_failure", "r1")
    assert (failure.mode, failure.upstream_type) == (c.FAILURE_MODE_NOTIFICATION, "notification_failed")
    assert only_rehearsals(recorder)


def test_slow(pair: tuple[Engine, Engine], recorder: Recorder) -> None:
    """A slow transfer succeeds after its delay, which is in its duration."""
    prefill, decode = pair
    decode.drill(drill(SLOW, prefill, delay_ns=SECOND // 5))
    prefill.lease("prefill-of-r1")
    before = time.monotonic_ns()
    decode.read("r1", prefill)
    results, _, _ = decode.received("r1")
    assert not results.failed_recving
    assert time.monotonic_ns() - before >= SECOND // 5
    assert not recorder.take("transfer_failure")
    (sample,) = recorder.transfers
    assert sample["duration_nano"] >= SECOND // 5
    assert sample["bytes"] > 0
    prefill.sent("prefill-of-r1")


def test_slow_and_given_up(pair: tuple[Engine, Engine], recorder: Recorder) -> None:
    """A load slowed by a drill can be cancelled, which is a rehearsal too."""
    prefill, decode = pair
    decode.drill(drill(SLOW, prefill, delay_ns=SECOND // 5))
    decode.read("r1", prefill)
    decode.cancel("r1")
    (failure,) = recorder.take("transfer_failure", "r1")
    assert failure.mode == c.FAILURE_MODE_TIMEOUT
    assert [told.rehearsal for told in decode.reported] == [True]
    decode.received("r1")
    assert only_rehearsals(recorder)


def test_another_peer(pair: tuple[Engine, Engine], recorder: Recorder) -> None:
    """A drill for one peer leaves the others' transfers alone."""
    prefill, decode = pair
    decode.drill(replace(drill(c.FAILURE_MODE_TRANSFER, prefill), peer="10.9.9.9:1"))
    prefill.lease("prefill-of-r1")
    decode.read("r1", prefill)
    assert not decode.received("r1")[0].failed_recving
    prefill.sent("prefill-of-r1")
    assert not recorder.events


def test_it_ends_by_itself(pair: tuple[Engine, Engine]) -> None:
    """After its time a drill hits nothing, and costs nothing: it is no longer armed."""
    prefill, decode = pair
    decode.drill(drill(c.FAILURE_MODE_TRANSFER, prefill, valid_for_ns=1))
    prefill.lease("prefill-of-r1")
    decode.read("r1", prefill)
    assert not decode.received("r1")[0].failed_recving
    prefill.sent("prefill-of-r1")
    assert not decode.worker._penstock.faults.armed


def test_paused(pair: tuple[Engine, Engine], recorder: Recorder) -> None:
    """While paused a drill hits nothing."""
    prefill, decode = pair
    decode.drill(drill(c.FAILURE_MODE_SETUP, prefill))
    runtime.pause("test", paused=True)
    try:
        prefill.lease("prefill-of-r1")
        decode.read("r1", prefill)
        assert not decode.received("r1")[0].failed_recving
        prefill.sent("prefill-of-r1")
    finally:
        runtime.pause("test", paused=False)
    assert not recorder.events


def test_refused(pair: tuple[Engine, Engine], make_engine: MakeEngine, recorder: Recorder) -> None:
    """A worker whose process does not allow faults refuses drills, and goes on."""
    del recorder
    prefill, _ = pair
    runtime.configure(replace(ALLOWED, allow_faults=False))
    decode = make_engine("kv_consumer")
    with pytest.raises(DrillRefusedError, match="PENSTOCK_ALLOW_FAULTS=1"):
        decode.drill(drill(c.FAILURE_MODE_SETUP, prefill))
    connect(prefill, decode)


def test_shutdown_ends_a_delay(
    pair: tuple[Engine, Engine], make_engine: MakeEngine, recorder: Recorder
) -> None:
    """A worker that shuts down does not wait for the delay of a drill."""
    prefill, _ = pair
    decode = make_engine("kv_consumer")
    decode.drill(drill(c.FAILURE_MODE_HANDSHAKE, prefill, delay_ns=60 * SECOND))
    decode.read("r1", prefill)
    decode.worker._penstock.faults.stop()
    deadline = time.monotonic() + DEADLINE
    while not recorder.take("handshake") and time.monotonic() < deadline:
        time.sleep(0.005)
    assert len(recorder.take("handshake")) == 1
    decode.step()
