"""The NIXL hook on real workers: vLLM's connector, NIXL agents, ZeroMQ side channels. Failures are made below vLLM's own code."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv.nixl import handshake_mixin
from penstock.instrumentation.vllm.kv.nixl.compatibility import own_factors

from demo.common.processes import free_port
from tests.support.engine.recorder import recording
from tests.support.engine.versions import from_version
from tests.support.kv.nixl_faults import break_agent, refuse
from tests.support.kv.nixl_pair import HOST, Engine, connect, instrumented_engines, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.engine.recorder import Recorder

    MakeEngine = Callable[..., Engine]

PAGE = 2 * 32 * 64 * 4
"""Bytes of one block of the test's KV cache."""


@pytest.fixture(scope="module")
def make_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeEngine]:
    """Build instrumented engines, which live until the module is done; those of the same model can talk."""
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


@pytest.fixture
def strangers(connected: tuple[Engine, Engine], make_engine: MakeEngine) -> tuple[Engine, Engine]:
    """Return the prefill engine and a decode engine that has not met it."""
    return connected[0], make_engine("kv_consumer")


def test_good_transfer(strangers: tuple[Engine, Engine], recorder: Recorder) -> None:
    """A read is one sample with bytes, times, peer and request, and its handshake one event."""
    prefill, decode = strangers
    prefill.lease("prefill-of-good")
    before = time.time_ns()
    decode.read("good", prefill)
    results, invalid, _ = decode.received("good")
    assert not results.failed_recving
    assert not invalid
    assert bool((decode.cache[1:4] == prefill.cache[4:7]).all())
    (sample,) = recorder.transfers
    assert (sample["bytes"], sample["channel"], sample["result"]) == (
        3 * PAGE,
        c.CHANNEL_KV,
        c.TRANSFER_RESULT_OK,
    )
    assert (sample["direction"], sample["component"]) == (c.DIRECTION_RECEIVE, c.COMPONENT_WORKER)
    assert (sample["connector"], sample["peer"], sample["peer_engine_id"], sample["request_id"]) == (
        "NixlConnector",
        prefill.address,
        prefill.id,
        "good",
    )
    assert sample["descriptors"] > 0
    assert before < sample["end_time_unix_nano"] - sample["duration_nano"]
    (handshake,) = recorder.take("handshake")
    assert (handshake.result, handshake.peer.address) == (c.TRANSFER_RESULT_OK, prefill.address)
    assert (list(handshake.waiting_request_ids), handshake.waiters_total) == (["good"], 1)
    assert handshake.queued_time_unix_nano <= handshake.start_time_unix_nano < handshake.end_time_unix_nano
    assert handshake.clock_offset_nano == 0
    assert handshake.id
    assert decode.began == [("good", sample["end_time_unix_nano"] - sample["duration_nano"])]
    assert not decode.reported
    prefill.sent("prefill-of-good")
    assert not recorder.take("transfer_failure", "good")
    assert not recorder.take("transfer_failure", "prefill-of-good")
    peers = {status.peer.engine_id: status for status in recorder.snapshot().peers}
    assert peers[prefill.id].connected
    assert peers[prefill.id].HasField("clock_offset_nano")
    assert peers[prefill.id].last_active_unix_nano >= before
    assert decode.step()[2] is None


def test_names_stay(pair: tuple[Engine, Engine]) -> None:
    """Connector, worker and agent go by the names that vLLM keys things by."""
    for engine in pair:
        names = [
            type(each).__name__ for each in (engine.connector, engine.worker, engine.worker.nixl_wrapper)
        ]
        assert names == ["NixlPullConnector", "NixlPullConnectorWorker", "nixl_agent"]


def test_in_flight(pair: tuple[Engine, Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that lasts is in the snapshot with its peer and its start, and no longer when it is done."""
    prefill, decode = pair
    with monkeypatch.context() as slow:
        break_agent(slow, decode, "check_xfer_state", lambda *_: "PROC")
        before = time.time_ns()
        decode.read("r1", prefill)
        decode.step()
        (in_flight,) = recorder.snapshot().in_flight
        assert (in_flight.count, in_flight.peer.address, in_flight.connector) == (
            1,
            prefill.address,
            "NixlConnector",
        )
        assert before <= in_flight.oldest_start_time_unix_nano <= time.time_ns()
    decode.received("r1")
    assert not recorder.snapshot().in_flight


def test_factors_of_the_hash(make_engine: MakeEngine) -> None:
    """The scheduler's side, which sees a hash only, finds what vLLM made it of; two models differ in the model alone."""
    engines = [make_engine("kv_producer", model) for model in ("model-a", "model-b")]
    found = [own_factors(each.config, each.worker.compat_hash) for each in engines]
    assert found[0]["attn_backend_name"] == engines[0].worker.backend_name
    assert found[0]["dtype"] == str(engines[0].config.model_config.dtype)
    # Until 0.27 the hash has no direction.
    assert found[0].get("transfer_mode", "pull") == "pull"
    assert [name for name, value in found[0].items() if value != found[1][name]] == ["model"]
    assert own_factors(engines[0].config, "0" * 64) == {}


def test_the_scheduler_shows_hash_and_factors(make_engine: MakeEngine) -> None:
    """What the workers hand to the scheduler's connector is in the engine's facts."""
    engine = make_engine("kv_producer")
    assert engine.observer.compatibility_hash == engine.worker.compat_hash
    assert engine.observer.compatibility_factors["model"] == engine.config.model_config.model


def test_how_blocks_move_is_in_the_snapshot(
    make_engine: MakeEngine, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layout, memory, NIXL's backend and what is configured of UCX; and after a handshake the peer's geometry."""
    monkeypatch.setenv("UCX_TLS", "tcp,self,sm")
    prefill, decode = make_engine("kv_producer"), make_engine("kv_consumer")
    decode.read("r1", prefill)
    decode.received("r1")
    snapshot = recorder.snapshot()
    facts = snapshot.transfer
    assert (facts.connector, facts.kv_layout) == ("NixlConnector", decode.worker.kv_cache_layout)
    assert (facts.attention_backend, facts.memory) == (decode.worker.backend_name, "DRAM")
    assert facts.environment["UCX_TLS"] == "tcp,self,sm"
    peer = next(each for each in snapshot.peers if each.peer.engine_id == prefill.id and each.connected)
    assert (peer.tensor_parallel_size, peer.block_size) == (1, prefill.worker.block_size)


def test_incompatible(make_engine: MakeEngine, recorder: Recorder) -> None:
    """Engines of different models: one failure with both hashes, and a report to the scheduler."""
    prefill, decode = make_engine("kv_producer", "model-a"), make_engine("kv_consumer", "model-b")
    decode.read("r1", prefill)
    results, invalid, _ = decode.received("r1")
    assert results.failed_recving == {"r1"}
    assert invalid == {1, 2, 3}
    (failure,) = recorder.take("transfer_failure", "r1")
    assert (failure.mode, failure.error_type) == (c.FAILURE_MODE_HANDSHAKE, c.ERROR_TYPE_INCOMPATIBLE)
    assert failure.incompatibility.local_hash == decode.worker.compat_hash
    assert failure.incompatibility.remote_hash == prefill.worker.compat_hash
    assert (failure.upstream_type, failure.error_class) == ("handshake_failed", "RuntimeError")
    assert (failure.peer.address, failure.peer.engine_id) == (prefill.address, prefill.id)
    assert (failure.blocks, failure.attempt, failure.remote_request_id) == (3, 1, "prefill-of-r1")
    (handshake,) = recorder.take("handshake")
    assert (handshake.result, handshake.error_type) == (c.TRANSFER_RESULT_ERROR, c.ERROR_TYPE_INCOMPATIBLE)
    assert failure.handshake_id == handshake.id
    peer = next(each for each in recorder.snapshot().peers if each.peer.engine_id == prefill.id)
    assert (peer.connected, peer.handshake_error) == (False, c.ERROR_TYPE_INCOMPATIBLE)
    assert peer.handshake_error_text
    (told,) = decode.reported
    assert (told.request_id, told.mode, told.error_type) == (
        "r1",
        c.FAILURE_MODE_HANDSHAKE,
        c.ERROR_TYPE_INCOMPATIBLE,
    )
    assert told.peer.address == prefill.address
    assert not recorder.transfers


def test_peer_with_another_engine_id(pair: tuple[Engine, Engine], recorder: Recorder) -> None:
    """A peer that was restarted, or a wrong address: the request that names another engine fails."""
    prefill, decode = pair
    decode.read("r1", prefill, engine_id="the-former-engine")
    decode.received("r1")
    (failure,) = recorder.take("transfer_failure", "r1")
    assert (failure.mode, failure.error_type) == (c.FAILURE_MODE_HANDSHAKE, c.ERROR_TYPE_WRONG_ENGINE)


def test_silent_peer_and_its_victims(
    pair: tuple[Engine, Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of requests that share a handshake with a closed port, one for another address fails as collateral."""
    # The attempt at the port has the time that it needs.
    monkeypatch.setattr(handshake_mixin.connection_refused, "__defaults__", (60.0,))
    prefill, decode = pair
    dead = free_port()
    decode.read("culprit", prefill, port=dead, engine_id="engine", local=(1,), remote=(1,))
    decode.read("same-port", prefill, port=dead, engine_id="engine", local=(2,), remote=(2,))
    decode.read("victim", prefill, engine_id="engine", local=(3,), remote=(3,))
    decode.step_until(lambda _: len(decode.reported) == 3, "three failures")
    failed = {told.request_id: told for told in decode.reported}
    (handshake,) = recorder.take("handshake")
    assert list(handshake.waiting_request_ids) == ["culprit", "same-port", "victim"]
    assert handshake.error_type == c.ERROR_TYPE_REFUSED
    bodies = {each: recorder.take("transfer_failure", each) for each in failed}
    assert all(len(found) == 1 for found in bodies.values())
    assert {each: found[0].mode for each, found in bodies.items()} == {
        "culprit": c.FAILURE_MODE_HANDSHAKE,
        "same-port": c.FAILURE_MODE_HANDSHAKE,
        "victim": c.FAILURE_MODE_COLLATERAL,
    }
    assert {found[0].handshake_id for found in bodies.values()} == {handshake.id}
    victim = bodies["victim"][0]
    assert (victim.caused_by_request_id, victim.peer.address) == ("culprit", prefill.address)
    assert bodies["culprit"][0].peer.address == f"{HOST}:{dead}"
    assert victim.error_class == "Again"
    assert "nothing listens there" in victim.error_text
    assert {told.mode for told in failed.values()} == {c.FAILURE_MODE_HANDSHAKE, c.FAILURE_MODE_COLLATERAL}


def test_heartbeat_to_a_wrong_engine(pair: tuple[Engine, Engine], recorder: Recorder) -> None:
    """A heartbeat's handshake has no request: its failure is emitted once, without one."""
    prefill, decode = pair
    decode.heartbeat("the-former-engine", prefill.port)
    # Each is reported on the handshake's thread, one after the other.
    decode.step_until(
        lambda _: recorder.take("handshake") and recorder.take("transfer_failure", ""),
        "handshake and failure",
    )
    (failure,) = recorder.take("transfer_failure", "")
    (handshake,) = recorder.take("handshake")
    assert (failure.mode, failure.handshake_id) == (c.FAILURE_MODE_HANDSHAKE, handshake.id)
    assert failure.peer.address == prefill.address
    assert handshake.waiters_total == 0


@pytest.mark.parametrize(
    ("method", "replacement", "mode", "upstream", "begun"),
    [
        ("make_prepped_xfer", refuse, c.FAILURE_MODE_SETUP, "transfer_setup_failed", False),
        ("transfer", refuse, c.FAILURE_MODE_SETUP, "transfer_setup_failed", True),
        ("check_xfer_state", lambda *_: "ERR", c.FAILURE_MODE_TRANSFER, "transfer_failed", True),
        ("check_xfer_state", refuse, c.FAILURE_MODE_EXCEPTION, "transfer_exception", True),
    ],
    ids=["prepare", "post", "state", "exception"],
)
def test_failing_reads(
    pair: tuple[Engine, Engine],
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    replacement: Any,
    mode: int,
    upstream: str,
    begun: bool,
) -> None:
    """Each way in which a read fails is one failure of its mode; a read that was posted ended in an error."""
    prefill, decode = pair
    break_agent(monkeypatch, decode, method, replacement)
    decode.read("r1", prefill)
    results, _, _ = decode.received("r1")
    (failure,) = recorder.take("transfer_failure", "r1")
    assert (failure.mode, failure.upstream_type) == (mode, upstream)
    assert (failure.peer.address, failure.peer.engine_id) == (prefill.address, prefill.id)
    assert failure.error_text
    assert (failure.blocks, failure.bytes) == (3, 3 * PAGE)
    assert failure.error_class == ("" if upstream == "transfer_failed" else "RuntimeError")
    assert results.failed_recving == {"r1"}
    assert [told.mode for told in decode.reported] == [mode]
    assert [sample["result"] for sample in recorder.transfers] == ([c.TRANSFER_RESULT_ERROR] if begun else [])
    assert not recorder.snapshot().in_flight


@from_version(0, 30, "ends its engine where a handle of a failed read cannot be released")
def test_refused_release(
    pair: tuple[Engine, Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a release is refused vLLM fails the transfer at every poll; one failure and one refusal are emitted."""
    prefill, decode = pair
    with monkeypatch.context() as broken:
        break_agent(broken, decode, "check_xfer_state", lambda *_: "ERR")
        with monkeypatch.context() as refused:
            break_agent(refused, decode, "release_xfer_handle", refuse)
            decode.read("r1", prefill)
            for _ in range(3):
                decode.step()
            assert [in_flight.count for in_flight in recorder.snapshot().in_flight] == [1]
        decode.received("r1")
    modes = [failure.mode for failure in recorder.take("transfer_failure", "r1")]
    assert modes == [c.FAILURE_MODE_TRANSFER, c.FAILURE_MODE_RELEASE]
    assert [sample["result"] for sample in recorder.transfers] == [c.TRANSFER_RESULT_ERROR]


def test_notification(
    pair: tuple[Engine, Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notification that cannot be sent is a failure, but not of the request: its KV is here."""
    prefill, decode = pair
    break_agent(monkeypatch, decode, "send_notif", refuse)
    _, _, report = decode.read("r1", prefill, local=())
    (failure,) = recorder.take("transfer_failure", "r1")
    assert (failure.mode, failure.attempt) == (c.FAILURE_MODE_NOTIFICATION, 0)
    assert failure.peer.address == prefill.address
    assert report is None


def test_clean_up_of_a_dead_request(pair: tuple[Engine, Engine], recorder: Recorder) -> None:
    """The request that frees a failed one's blocks fails the same way, without a report to the scheduler."""
    prefill, decode = pair
    decode.read("clean-up", prefill, engine_id="the-former-engine", local=())
    reports = []

    def told(answer: Any) -> bool:
        reports.append(answer[2])
        return bool(recorder.take("transfer_failure", "clean-up"))

    decode.step_until(told, "its failure")
    reports.append(decode.step()[2])
    assert not any(reports)
    assert recorder.take("transfer_failure", "clean-up")[0].attempt == 0


def test_expired_lease_and_late_read(pair: tuple[Engine, Engine], recorder: Recorder) -> None:
    """Blocks not read in time expire; a later read may get another request's KV."""
    prefill, decode = pair
    prefill.lease("prefill-of-late", seconds=-1.0)
    (expired,) = recorder.take("transfer_failure", "prefill-of-late")
    assert (expired.mode, expired.direction) == (c.FAILURE_MODE_EXPIRED, c.DIRECTION_SEND)
    decode.read("late", prefill)
    decode.received("late")
    prefill.step_until(
        lambda _: len(recorder.take("transfer_failure", "prefill-of-late")) > 1, "the late read"
    )
    late = recorder.take("transfer_failure", "prefill-of-late")[1]
    assert (late.mode, late.error_type) == (c.FAILURE_MODE_LATE_READ, c.ERROR_TYPE_EVICTED)
    assert not recorder.take("transfer_failure", "late")


def test_expired_lease_is_reported_to_the_scheduler(pair: tuple[Engine, Engine]) -> None:
    """The scheduler learns which released blocks were not read."""
    prefill, _ = pair
    prefill.lease("unread", seconds=60.0)
    prefill.worker._reqs_to_send["unread"] = time.perf_counter() - 1.0
    _, _, report = prefill.sent("unread")
    assert report.expired == ("unread",)


@from_version(0, 32, "marks no peer invalid")
def test_invalid_peer(strangers: tuple[Engine, Engine], recorder: Recorder) -> None:
    """Reads from a peer that vLLM has marked invalid fail at once without a log line; a failure is emitted and the snapshot shows the peer."""
    prefill, decode = strangers
    connect(prefill, decode)
    decode.worker._invalid_remote_engines.add(prefill.id)
    decode.worker._invalid_engine_backoff[prefill.id] = (60.0, time.perf_counter() + 60.0)
    assert [status.peer.engine_id for status in recorder.snapshot().peers if status.upstream_invalid] == [
        prefill.id
    ]
    results, _, report = decode.read("r1", prefill)
    assert results.failed_recving == {"r1"}
    (failure,) = recorder.take("transfer_failure", "r1")
    assert (failure.mode, failure.upstream_type) == (c.FAILURE_MODE_SETUP, "invalid_remote_engine")
    assert report.failures[0].mode == c.FAILURE_MODE_SETUP


def test_paused(strangers: tuple[Engine, Engine], recorder: Recorder) -> None:
    """While paused transfers continue without events, and leave no state."""
    prefill, decode = strangers
    runtime.pause("test", paused=True)
    try:
        connect(prefill, decode)
    finally:
        runtime.pause("test", paused=False)
    assert not recorder.events
    assert not recorder.transfers
    assert not recorder.snapshot().in_flight
    prefill.lease("prefill-of-resumed")
    decode.read("resumed", prefill)
    decode.received("resumed")
    assert [sample["peer_engine_id"] for sample in recorder.transfers] == [prefill.id]
    assert recorder.transfers[0]["peer"] == prefill.address


def test_many_requests_leave_nothing(pair: tuple[Engine, Engine]) -> None:
    """The state of a finished request is removed."""
    prefill, decode = pair
    for index in range(10):
        prefill.lease(f"prefill-of-{index}")
        decode.read(str(index), prefill)
        decode.received(str(index))
        prefill.sent(f"prefill-of-{index}")
    for engine in (prefill, decode):
        observer = engine.worker._penstock
        assert not observer._started_ns
        assert not observer._emitted
        assert not observer.transfers.in_flight()
