"""Two real schedulers whose P2P tiers move KV over real NIXL and ZMQ, without engines: what is reported, and what is done about it."""

from __future__ import annotations

import uuid
import warnings
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.orders import Orders
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv import decider
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_OPEN
from penstock.proto.v1.snapshot_pb2 import Snapshot
from penstock.rules.policy import Action, Deferral, PeerQuarantine
from penstock.rules.quarantine import QuarantineOrder

from demo.common.processes import free_port
from tests.support.engine.recorder import policy
from tests.support.engine.schedulers import BLOCK, BLOCKS, request
from tests.support.engine.versions import client_text, from_version
from tests.support.kv.fake_mover import run_step, worker
from tests.support.kv.p2p_pair import p2p
from tests.support.manual_clock import ManualClock

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from vllm.v1.kv_offload.tiering.p2p.session import client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]

pytestmark = from_version(0, 32, "has a P2P tier whose sessions have no time-out")

SHAPE = (BLOCKS, 2, BLOCK, 64)
PAGE = torch.rand(SHAPE[1:]).nbytes
CHUNKS = (4 << 20) // PAGE
STEPS = 4_000
NAME = "OffloadingConnector"


class Engine:
    """A scheduler, the connector of its worker, and its KV cache of one layer."""

    def __init__(self, make: MakeScheduler, **options: Any) -> None:
        self.port = free_port()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.scheduler = make(**p2p(self.port, f"e-{uuid.uuid4().hex}"), **options)
            self.worker = worker(self.scheduler.vllm_config)
            self.cache = torch.rand(SHAPE)
            self.worker.register_kv_caches({"layer": self.cache})
        self.address = f"127.0.0.1:{self.port}"
        (self.tier,) = self.scheduler.connector.connector_scheduler.manager.secondary_tiers
        # vLLM closes its sockets with what is still to be sent, and waits for ever for a peer that is gone (docs/upstream.md).
        self.tier._control._zmq_ctx.linger = 0
        self.outputs: list[Any] = []

    def step(self) -> None:
        """Do one step."""
        for batch in run_step(self.scheduler, [self.worker]).values():
            self.outputs += batch.outputs

    def until(self, done: Callable[[], bool], *others: Engine) -> None:
        """Step until that is so; *others* step along."""
        for _ in range(STEPS):
            if done():
                return
            self.step()
            for other in others:
                other.step()
        pytest.fail("it did not come about")

    def serve(self, request_id: str, *others: Engine, **more: Any) -> None:
        """Run a request to its end."""
        self.scheduler.add_request(request(request_id, **more))
        self.until(lambda: request_id not in self.scheduler.requests, *others)

    def reasons(self) -> list[Any]:
        """Return the sentences of the answers that are errors."""
        return [client_text(each) for each in self.outputs if str(each.finish_reason) == "error"]

    def halt(self) -> None:
        """Keep the tier from answering, as a stopped process does: from 0.33 on it has a thread of its own besides the steps."""
        manager = self.scheduler.connector.connector_scheduler.manager
        thread = getattr(manager, "_tier_poll_thread", None)
        if thread is not None:
            manager._tier_poll_stop.set()
            thread.join(10)
            assert not thread.is_alive()

    def go_on(self) -> None:
        """Let the tier answer again."""
        manager = self.scheduler.connector.connector_scheduler.manager
        if getattr(manager, "_tier_poll_thread", None) is not None:
            manager._tier_poll_stop.clear()
            manager._start_tier_poll_thread()

    def waits(self, request_id: str, **more: Any) -> None:
        """Add a request, and step until it has asked what it asks."""
        self.scheduler.add_request(request(request_id, **more))
        for _ in range(3):
            self.step()
        assert request_id in self.scheduler.requests

    @property
    def jobs(self) -> list[Any]:
        """The promotions that vLLM waits for."""
        manager = self.scheduler.connector.connector_scheduler.manager
        return [each.transfer_job for each in manager._jobs.values() if each.transfer_job.is_promotion]

    def chunks(self) -> list[bytes]:
        """Return what is in each chunk of the tier."""
        return [each.tobytes() for each in np.asarray(self.tier._primary_kv_view)]

    def stop(self) -> None:
        """End the tier, as the end of its process does: its thread first, then its sockets."""
        self.halt()
        self.tier.shutdown()


@pytest.fixture
def pair(make_scheduler: MakeScheduler) -> Iterator[tuple[Engine, Engine]]:
    """Give the engine that has KV and the one that loads it."""
    source, reader = Engine(make_scheduler), Engine(make_scheduler)
    yield source, reader
    for each in (source, reader):
        with suppress(Exception):
            each.worker.shutdown()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """Give the deadlines a clock that only the test moves."""
    clock = ManualClock()
    monkeypatch.setattr(decider, "time", SimpleNamespace(monotonic_ns=clock))
    return clock


def prefilled(key: str) -> dict[str, Any]:
    """Return the parameters of a request that is prefilled for another engine."""
    return {"remote_decoder": {"kv_request_id": key}}


def from_prefiller(source: Engine, key: str) -> dict[str, Any]:
    """Return the parameters of a request whose KV a prefill engine has."""
    return {
        "remote_prefiller": {"kv_request_id": key, "remote_host": "127.0.0.1", "remote_port": source.port}
    }


def from_source(source: Engine, key: str) -> dict[str, Any]:
    """Return the parameters of a request whose KV another engine may have."""
    return {
        "remote_kv_source": {"kv_request_id": key, "remote_host": "127.0.0.1", "remote_port": source.port}
    }


def received(recorder: Recorder) -> list[tuple[Any, ...]]:
    """Return request, component, result, peer and bytes of each load."""
    names = ("request_id", "component", "result", "peer", "bytes")
    return [
        tuple(each[name] for name in names)
        for each in recorder.transfers
        if each["direction"] == c.DIRECTION_RECEIVE
    ]


def loaded(source: Engine, request_id: str) -> list[tuple[Any, ...]]:
    """Return what a request that has loaded three blocks from *source* has reported."""
    size = 3 * PAGE
    return [
        (request_id, c.COMPONENT_SCHEDULER, c.TRANSFER_RESULT_OK, source.address, size),
        (request_id, c.COMPONENT_WORKER, c.TRANSFER_RESULT_OK, "host", size),
    ]


def failures(recorder: Recorder, request_id: str) -> list[tuple[Any, ...]]:
    """Return mode, error type, peer and blocks of each failure of a request."""
    return [
        (each.mode, each.error_type, each.peer.address, each.blocks)
        for each in recorder.take("transfer_failure", request_id)
    ]


def outcomes(recorder: Recorder, request_id: str) -> list[tuple[Any, ...]]:
    """Return outcome, who decided, peer and tokens of each outcome of a request."""
    return [
        (each.outcome, each.decided_by, each.peer.address, each.tokens_recomputed)
        for each in recorder.take("load_outcome", request_id)
    ]


def statuses(engine: Engine) -> dict[str, Any]:
    """Return the peers of an engine's tier in a snapshot."""
    snapshot = Snapshot()
    engine.tier._penstock_fill(snapshot)
    return {each.peer.address: each for each in snapshot.peers}


def test_a_prefilled_request_is_loaded(pair: tuple[Engine, Engine], recorder: Recorder) -> None:
    """One transfer from the peer, with its bytes, and one copy from this machine's memory; nothing failed."""
    source, reader = pair
    source.serve("prefill", params=prefilled("k"), max_tokens=1)
    reader.serve("decode", source, params=from_prefiller(source, "k"))
    assert received(recorder) == loaded(source, "decode")
    assert all(each["duration_nano"] > 0 for each in recorder.transfers if each["peer"] == source.address)
    assert recorder.take("transfer_failure") == []
    (closed,) = recorder.take("request_closed", "decode")
    assert (closed.kv_role, closed.peer.address) == (c.ROLE_DECODE, source.address)
    assert (closed.external_cached_tokens, closed.unloaded_tokens) == (3 * BLOCK, 0)
    (prefill,) = recorder.take("request_closed", "prefill")
    assert (prefill.kv_role, prefill.leased_blocks) == (c.ROLE_PREFILL, 0)
    status = statuses(reader)[source.address]
    assert status.connected
    assert not status.upstream_invalid
    assert status.last_active_unix_nano


def test_what_another_engine_has_is_loaded(pair: tuple[Engine, Engine], recorder: Recorder) -> None:
    """The same for a source that is asked; what it does not have is a miss and no failure."""
    source, reader = pair
    source.serve("saved")
    reader.serve("hit", source, params=from_source(source, "k"))
    reader.serve("miss", source, params=from_source(source, "l"), first=77)
    assert received(recorder) == loaded(source, "hit")
    assert recorder.take("transfer_failure") == []
    assert recorder.take("load_outcome") == []


def test_the_source_ends(pair: tuple[Engine, Engine], recorder: Recorder) -> None:
    """The session ends with what was asked of it: a failed transfer, and vLLM computes the prompt."""
    source, reader = pair
    source.serve("saved")
    reader.serve("hit", source, params=from_source(source, "k"))
    recorder.transfers.clear()
    # Nothing of this one comes: the source does not step any more.
    reader.scheduler.add_request(request("lost", params=from_prefiller(source, "l"), first=8))
    reader.until(lambda: bool(reader.tier._penstock_promotions._open))
    source.stop()
    reader.until(lambda: "lost" not in reader.scheduler.requests)
    assert failures(recorder, "lost") == [
        (c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_REMOTE_RESET, source.address, 3)
    ]
    assert [each[2:] for each in received(recorder)] == [(c.TRANSFER_RESULT_ERROR, source.address, 0)]
    assert outcomes(recorder, "lost") == [
        (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_VLLM, source.address, 3 * BLOCK)
    ]


def test_a_stopped_source_is_not_reached(
    pair: tuple[Engine, Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handshake ends by vLLM's own time-out, and with it a look-up that nobody answers; the request is computed here."""
    source, reader = pair
    source.halt()
    monkeypatch.setenv("VLLM_P2P_HANDSHAKE_TIMEOUT_S", "1")
    reader.serve("asked", params=from_source(source, "k"))
    expected = (c.FAILURE_MODE_HANDSHAKE, c.ERROR_TYPE_TIMEOUT, source.address, 0)
    assert failures(recorder, "asked") == [expected]
    assert outcomes(recorder, "asked") == [(c.OUTCOME_RECOMPUTED, c.DECIDED_BY_VLLM, source.address, 0)]
    assert source.address not in statuses(reader)


def test_a_source_that_stops_before_it_writes(
    pair: tuple[Engine, Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody answers within vLLM's own time; the failure has the peer, its blocks and the time-out."""
    source, reader = pair
    source.serve("saved")
    reader.serve("hit", source, params=from_source(source, "k"))
    monkeypatch.setattr(client, "_LOAD_TIMEOUT_S", 0.0)
    monkeypatch.setattr(client, "_ABORT_ACK_TIMEOUT_S", 0.0)
    reader.tier._penstock_promotions._wait_ns = 0
    reader.serve("late", params=from_prefiller(source, "l"), first=9)
    assert failures(recorder, "late") == [(c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_TIMEOUT, source.address, 3)]


def test_a_policy_fails_what_does_not_come(pair: tuple[Engine, Engine], recorder: Recorder) -> None:
    """With action fail the client gets the retryable error, and nothing is computed."""
    source, reader = pair
    runtime.policy.swap(policy("fail"), 1.0, Orders())
    source.serve("saved")
    reader.serve("hit", source, params=from_source(source, "k"))
    reader.scheduler.add_request(request("lost", params=from_prefiller(source, "l"), first=8))
    reader.until(lambda: bool(reader.tier._penstock_promotions._open))
    source.stop()
    reader.until(lambda: "lost" not in reader.scheduler.requests)
    assert [each[:2] for each in outcomes(recorder, "lost")] == [(c.OUTCOME_FAILED, c.DECIDED_BY_POLICY)]
    (reason,) = reader.reasons()
    assert source.address in reason


def asked_for(reader: Engine, source: Engine) -> Any:
    """Step until *reader* has ordered a promotion that *source* has not seen yet; return it."""
    for _ in range(STEPS):
        reader.step()
        if reader.jobs:
            return reader.jobs[0]
        source.step()
    pytest.fail("it orders no promotion")


def over(seconds: float, reader: Engine, clock: ManualClock) -> None:
    """Let *seconds* pass and a step be done."""
    clock.advance(seconds)
    reader.step()


def failed_at(engine: Engine, recorder: Recorder, request_id: str, wait: str, source: Engine) -> None:
    """See that a request has failed at its deadline: the client's sentence, and one outcome."""
    (reason,) = engine.reasons()
    assert f"mode timeout, deferral.{wait} 3 s, peer {source.address}" in reason
    assert "can be retried" in reason
    assert outcomes(recorder, request_id) == [(c.OUTCOME_FAILED, c.DECIDED_BY_DEADLINE, source.address, 0)]
    assert request_id not in engine.scheduler.requests


def test_a_deadline_ends_a_look_up_without_an_answer(
    pair: tuple[Engine, Engine], recorder: Recorder, clock: ManualClock
) -> None:
    """The client is told after maxStartWait, and it is the source's failure; who comes when the source goes on is served."""
    source, reader = pair
    source.serve("saved")
    reader.serve("hit", source, params=from_source(source, "k"))
    source.halt()
    rules = PeerQuarantine(failures=1, window=60.0, duration=60.0, max_peers_percent=100)
    deferral = Deferral(3, 3, on_timeout=Action.FAIL)
    runtime.policy.swap(policy("recompute", deferral=deferral, quarantine=rules), 1.0, Orders())
    reader.waits("asked", params=from_source(source, "l"), first=9)
    over(2, reader, clock)
    assert reader.reasons() == []
    over(2, reader, clock)
    failed_at(reader, recorder, "asked", "maxStartWait", source)
    assert failures(recorder, "asked") == [(c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT, source.address, 0)]
    assert [(each.peer.address, each.state) for each in recorder.take("quarantine_changed")] == [
        (source.address, QUARANTINE_STATE_OPEN)
    ]
    runtime.policy.swap(policy("recompute", deferral=deferral), 1.0, Orders())
    source.go_on()
    recorder.transfers.clear()
    source.serve("saved too", first=9)
    reader.serve("again", source, params=from_source(source, "m"), first=9)
    assert received(recorder) == loaded(source, "again")


def test_a_deadline_ends_a_promotion(
    pair: tuple[Engine, Engine], recorder: Recorder, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has maxTransferWait; its blocks are nobody else's while vLLM waits for the source, which writes when it goes on."""
    source, reader = pair
    source.serve("saved")
    reader.serve("hit", source, params=from_source(source, "k"))
    source.serve("saved too", first=9)
    source.halt()
    runtime.policy.swap(policy("fail", deferral=Deferral(1, 3, on_timeout=Action.FAIL)), 1.0, Orders())
    # The deadline makes vLLM abort the promotion, and vLLM would not wait for the answer; its own abort would come much later.
    monkeypatch.setattr(client, "_ABORT_ACK_TIMEOUT_S", 0.0)
    monkeypatch.setattr(client, "_LOAD_TIMEOUT_S", 3_600.0)
    reader.scheduler.add_request(request("late", params=from_source(source, "l"), first=9))
    job = asked_for(reader, source)
    over(2, reader, clock)
    assert reader.reasons() == []
    over(2, reader, clock)
    failed_at(reader, recorder, "late", "maxTransferWait", source)
    expected = [(c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT, source.address, 3)]
    assert failures(recorder, "late") == expected

    # The next requests fill the tier, as far as it is free.
    for number in range(CHUNKS // 3 + 1):
        reader.serve(f"next{number}", first=20 + number)
    assert [each.job_id for each in reader.jobs] == [job.job_id]
    before = reader.chunks()
    source.go_on()
    reader.until(lambda: not reader.jobs, source)
    changed = {
        number for number, each in enumerate(zip(before, reader.chunks(), strict=True)) if each[0] != each[1]
    }
    assert changed <= set(job.chunk_ids.tolist())
    assert failures(recorder, "late") == expected
    reader.serve("again", source, params=from_source(source, "m"), first=9)
    assert failures(recorder, "again") == []


def test_a_request_that_ends_first_is_no_failure(pair: tuple[Engine, Engine], recorder: Recorder) -> None:
    """A client that leaves makes vLLM abort its promotion; that says nothing of the peer."""
    from vllm.v1.request import RequestStatus

    source, reader = pair
    source.serve("saved")
    reader.serve("hit", source, params=from_source(source, "k"))
    reader.scheduler.add_request(request("left", params=from_prefiller(source, "l"), first=8))
    reader.until(lambda: bool(reader.tier._penstock_promotions._open))
    reader.scheduler.finish_requests(["left"], RequestStatus.FINISHED_ABORTED)
    reader.until(lambda: not reader.tier._penstock_promotions._open, source)
    assert failures(recorder, "left") == []
    assert outcomes(recorder, "left") == []


def test_a_quarantined_source_is_not_asked(pair: tuple[Engine, Engine], recorder: Recorder) -> None:
    """An order keeps its requests here; they do not wait for it."""
    source, reader = pair
    source.serve("saved")
    order = Orders(quarantines=(QuarantineOrder("o", source.address, quarantined=True),))
    runtime.policy.swap(policy(), 1.0, order)
    reader.serve("kept", params=from_prefiller(source, "k"))
    assert received(recorder) == []
    assert failures(recorder, "kept") == []
    assert outcomes(recorder, "kept") == [
        (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_QUARANTINE, source.address, 3 * BLOCK)
    ]


def test_a_source_that_fails_is_quarantined(
    pair: tuple[Engine, Engine], recorder: Recorder, make_scheduler: MakeScheduler
) -> None:
    """Failed promotions count against the peer; other sources stay."""
    source, reader = pair
    other = Engine(make_scheduler)
    rules = PeerQuarantine(failures=2, window=60.0, duration=60.0, max_peers_percent=50)
    runtime.policy.swap(policy(quarantine=rules), 1.0, Orders())
    source.serve("saved")
    other.serve("also saved")
    reader.serve("hit", source, other, params=from_source(source, "k"))
    reader.serve("other hit", source, other, params=from_source(other, "m"), first=5)
    for number in range(2):
        lost = request(f"lost{number}", params=from_prefiller(source, f"l{number}"), first=8 + number)
        reader.scheduler.add_request(lost)
    reader.until(lambda: len(reader.tier._penstock_promotions._open) == 2)
    source.stop()
    reader.until(lambda: not reader.scheduler.requests)
    assert [(each.peer.address, each.state) for each in recorder.take("quarantine_changed")] == [
        (source.address, QUARANTINE_STATE_OPEN)
    ]
    reader.serve("kept", params=from_prefiller(source, "k3"), first=12)
    assert [each[1] for each in outcomes(recorder, "kept")] == [c.DECIDED_BY_QUARANTINE]


def test_a_full_table_of_peers_is_not_the_sources_fault(
    pair: tuple[Engine, Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VLLM opens no session beyond its own limit: the failure says so, and is collateral."""
    source, reader = pair
    monkeypatch.setenv("VLLM_P2P_MAX_PEERS", "0")
    reader.serve("refused", params=from_prefiller(source, "k"))
    (failure,) = recorder.take("transfer_failure", "refused")
    assert (failure.mode, failure.peer.address) == (c.FAILURE_MODE_COLLATERAL, source.address)
    assert "VLLM_P2P_MAX_PEERS" in failure.error_text


def test_a_session_that_ends_before_the_first_look_up(
    pair: tuple[Engine, Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VLLM calls it a miss; the request had a source that could not be asked."""
    source, reader = pair
    # What the source says late would begin another session.
    monkeypatch.setattr(reader.tier, "_accept_new_peers", lambda _: None)
    reader.scheduler.add_request(request("late", params=from_source(source, "k")))
    reader.tier._sessions[source.address]._conn.mark_dead()
    reader.tier._poll_once()
    reader.until(lambda: "late" not in reader.scheduler.requests)
    assert failures(recorder, "late") == [(c.FAILURE_MODE_SETUP, c.ERROR_TYPE_OTHER, source.address, 0)]


def test_vllms_own_back_off_is_a_state_of_the_peer(pair: tuple[Engine, Engine]) -> None:
    """A peer that vLLM opens no session to for now is marked so; with 0.32, which has no back-off, none is."""
    source, reader = pair
    if not hasattr(reader.tier, "_schedule_reconnect_backoff"):
        assert statuses(reader) == {}
        return
    for _ in range(2):
        reader.tier._schedule_reconnect_backoff(source.address)
    assert statuses(reader)[source.address].upstream_invalid


def test_without_penstock_nothing_is_kept(pair: tuple[Engine, Engine], recorder: Recorder) -> None:
    """While Penstock is paused the tier works as without it."""
    source, reader = pair
    source.serve("saved")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "active", False)
        reader.serve("hit", source, params=from_source(source, "k"))
    assert recorder.transfers == [] or {each["request_id"] for each in recorder.transfers} == {"saved"}
    assert reader.tier._penstock_promotions._sources == {}


def test_a_tier_of_another_kind_is_left_alone() -> None:
    """Only the P2P tier is instrumented."""
    from penstock.instrumentation.vllm.kv.tiering import P2pTiers

    manager = SimpleNamespace(secondary_tiers=[object()])
    assert P2pTiers().instrument(SimpleNamespace(connector_scheduler=SimpleNamespace(manager=manager))) == ()
    assert P2pTiers().instrument(object()) == ()
