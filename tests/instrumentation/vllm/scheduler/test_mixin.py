"""The scheduler's mixin on vLLM's own schedulers, with vLLM's own NIXL connector on the scheduler's side."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.messages.worker_report import WorkerReport

from tests.support.engine import schedulers
from tests.support.engine.recorder import Recorder, policy
from tests.support.engine.remote_loads import blocks, fail_load, failure, park
from tests.support.engine.schedulers import BLOCK, LOCAL, PEER, REMOTE, request, step
from tests.support.engine.versions import from_version
from tests.support.kv.connector_trial import with_nixl

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    MakeScheduler = Callable[..., Any]

BOTH = pytest.mark.parametrize("kind", ["sync", "async"])
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@BOTH
def test_names_and_ancestry_stay(kind: str, make_scheduler: MakeScheduler) -> None:
    """The instrumented class looks like the one that vLLM chose."""
    base = schedulers.SCHEDULERS[kind]
    scheduler = make_scheduler(kind)
    assert isinstance(scheduler, base)
    assert (type(scheduler).__name__, type(scheduler).__module__, type(scheduler).__qualname__) == (
        base.__name__,
        base.__module__,
        base.__qualname__,
    )
    assert type(scheduler.connector).__name__ == "NixlPullConnector"


@BOTH
def test_good_load(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A request that waits for remote KV is one deferral with its peer, however often it is polled."""
    scheduler = make_scheduler(kind)
    parked = park(scheduler)
    for _ in range(3):
        step(scheduler)
    assert [deferred.count for deferred in recorder.snapshot().deferred] == [1]
    began = WorkerReport(began=((parked.request_id, 4711),))
    step(scheduler, finished_recving={parked.request_id}, kv_connector_worker_meta=began)
    while parked.request_id in scheduler.requests:
        step(scheduler)
    (start,) = recorder.take("deferral_start", parked.request_id)
    (end,) = recorder.take("deferral_end", parked.request_id)
    assert start.reason == end.reason == c.DEFERRAL_REASON_REMOTE_KV
    assert start.peer.address == end.peer.address == PEER
    assert start.remote_request_id == REMOTE["remote_request_id"]
    assert end.ending == c.DEFERRAL_ENDING_READY
    assert end.transfer_start_time_unix_nano == 4711
    assert not recorder.take("load_outcome")
    assert not recorder.snapshot().deferred


@BOTH
@pytest.mark.parametrize("own", ["fail", "recompute"])
@pytest.mark.parametrize("action", ["", "fail", "recompute"])
def test_failed_load(
    kind: str, own: str, action: str, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """A failed load has one outcome: the policy's, or vLLM's own without one; vLLM's switch is as before."""
    scheduler = make_scheduler(kind, own=own)
    if action:
        runtime.policy.swap(policy(action), 1.0)
    parked = park(scheduler)
    fail_load(scheduler, parked)
    while parked.request_id in scheduler.requests:
        step(scheduler)
    recomputed = (action or own) == "recompute"
    (outcome,) = recorder.take("load_outcome", parked.request_id)
    assert outcome.outcome == (c.OUTCOME_RECOMPUTED if recomputed else c.OUTCOME_FAILED)
    assert outcome.decided_by == (c.DECIDED_BY_POLICY if action else c.DECIDED_BY_VLLM)
    assert outcome.policy_hash == (f"hash-{action}" if action else "")
    assert (outcome.mode, outcome.error_type) == (c.FAILURE_MODE_HANDSHAKE, c.ERROR_TYPE_TIMEOUT)
    assert outcome.peer.address == PEER
    assert outcome.connector == "NixlConnector"
    assert (outcome.tokens_kept, outcome.tokens_recomputed, outcome.attempt) == (0, 3 * BLOCK, 1)
    (closed,) = recorder.take("request_closed", parked.request_id)
    assert closed.finish_reason == ("length" if recomputed else "error")
    assert closed.output_tokens == (2 if recomputed else 0)
    assert scheduler.recompute_kv_load_failures is (own == "recompute")


@from_version(0, 30, "tells a failed load by its blocks alone")
@BOTH
def test_failure_of_a_request_keyed_layout(
    kind: str, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """Hybrid models report the request and no blocks: the same outcome."""
    scheduler = make_scheduler(kind, own="recompute")
    parked = park(scheduler)
    fail_load(scheduler, parked, with_blocks=False)
    (outcome,) = recorder.take("load_outcome", parked.request_id)
    assert (outcome.outcome, outcome.tokens_recomputed) == (c.OUTCOME_RECOMPUTED, 3 * BLOCK)


@BOTH
def test_local_prefix_is_kept(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """Tokens of the local prefix cache count as kept, only the remote ones as recomputed."""
    scheduler = make_scheduler(kind, own="recompute")
    first = request("first", tokens=2 * BLOCK + 1, max_tokens=1)
    scheduler.add_request(first)
    while first.request_id in scheduler.requests:
        step(scheduler)
    parked = park(scheduler, tokens=4 * BLOCK)
    fail_load(scheduler, parked, after=2)
    (outcome,) = recorder.take("load_outcome", parked.request_id)
    assert (outcome.tokens_kept, outcome.tokens_recomputed) == (2 * BLOCK, 2 * BLOCK)


@BOTH
@pytest.mark.parametrize("later", ["recompute", "fail"])
def test_two_ranks_one_decision(
    kind: str, later: str, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """With two ranks the blocks are reported before the request is; a policy that changes in between decides no more."""
    scheduler = make_scheduler(kind, own="fail")
    runtime.policy.swap(policy("recompute"), 1.0)
    parked = park(scheduler)
    lost = blocks(scheduler, parked)
    step(
        scheduler,
        invalid_block_ids=lost,
        kv_connector_worker_meta=WorkerReport(failures=(failure(parked.request_id, 0),)),
    )
    runtime.policy.swap(policy(later), 1.0)
    step(
        scheduler,
        finished_recving={parked.request_id},
        failed_recving={parked.request_id},
        invalid_block_ids=lost,
        kv_connector_worker_meta=WorkerReport(failures=(failure(parked.request_id, 1),)),
    )
    while parked.request_id in scheduler.requests:
        step(scheduler)
    (outcome,) = recorder.take("load_outcome", parked.request_id)
    assert (outcome.outcome, outcome.policy_hash) == (c.OUTCOME_RECOMPUTED, "hash-recompute")
    (closed,) = recorder.take("request_closed", parked.request_id)
    assert closed.finish_reason == "length"


@BOTH
def test_failure_reported_again_after_the_end(
    kind: str, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """Blocks of a request that has been failed may be reported once more: nothing is added."""
    scheduler = make_scheduler(kind, own="fail")
    parked = park(scheduler)
    lost = blocks(scheduler, parked)
    step(scheduler, invalid_block_ids=lost)
    step(scheduler, invalid_block_ids=lost)
    step(
        scheduler,
        finished_recving={parked.request_id},
        failed_recving={parked.request_id},
        invalid_block_ids=lost,
        kv_connector_worker_meta=WorkerReport(failures=(failure(parked.request_id, 1),)),
    )
    (outcome,) = recorder.take("load_outcome", parked.request_id)
    assert (outcome.outcome, outcome.mode) == (c.OUTCOME_FAILED, c.FAILURE_MODE_LOAD)
    assert outcome.peer.address == PEER
    assert parked.request_id not in scheduler.requests


@BOTH
def test_observed_policy(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A policy in mode observe is reported and not followed."""
    scheduler = make_scheduler(kind, own="fail")
    runtime.policy.swap(policy("", observed="recompute"), 1.0)
    parked = park(scheduler)
    fail_load(scheduler, parked)
    (outcome,) = recorder.take("load_outcome", parked.request_id)
    assert (outcome.outcome, outcome.observed_outcome) == (c.OUTCOME_FAILED, c.OUTCOME_RECOMPUTED)
    assert outcome.observed_reason


@BOTH
def test_paused(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """While paused vLLM's own configuration holds and no event is emitted."""
    scheduler = make_scheduler(kind, own="fail")
    runtime.policy.swap(policy("recompute"), 1.0)
    runtime.pause("test", paused=True)
    try:
        parked = park(scheduler)
        fail_load(scheduler, parked)
        assert parked.request_id not in scheduler.requests
        assert parked.status.name == "FINISHED_ERROR"
        assert not recorder.events
    finally:
        runtime.pause("test", paused=False)


@BOTH
def test_resumed_in_the_middle(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A deferral that ended during a pause is not open afterwards."""
    scheduler = make_scheduler(kind)
    parked = park(scheduler)
    runtime.pause("test", paused=True)
    step(scheduler, finished_recving={parked.request_id})
    runtime.pause("test", paused=False)
    assert not recorder.snapshot().deferred
    while parked.request_id in scheduler.requests:
        step(scheduler)
    assert recorder.kinds() == ["deferral_start", "request_closed"]


@BOTH
def test_a_load_during_a_pause_is_not_missing(
    kind: str, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """Whether and what it loaded was not observed: its prompt is not called computed without a reason."""
    scheduler = make_scheduler(kind)
    late = request("late", params=REMOTE)
    scheduler.add_request(late)
    runtime.pause("test", paused=True)
    step(scheduler)
    step(scheduler, finished_recving={"late"})
    runtime.pause("test", paused=False)
    while "late" in scheduler.requests:
        step(scheduler)
    (closed,) = recorder.take("request_closed", "late")
    assert (closed.unloaded_tokens, closed.first_token_time_unix_nano) == (0, 0)
    assert not scheduler._penstock.observer._counts.unloaded


@BOTH
def test_a_failure_that_vllm_handles_during_a_pause(
    kind: str, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """What vLLM did about it was not observed: the answer is not suspect, and its outcome is not known."""
    scheduler = make_scheduler(kind, own="recompute")
    parked = park(scheduler)
    step(scheduler, kv_connector_worker_meta=WorkerReport(failures=(failure(parked.request_id),)))
    runtime.pause("test", paused=True)
    fail_load(scheduler, parked)
    runtime.pause("test", paused=False)
    while parked.request_id in scheduler.requests:
        step(scheduler)
    assert recorder.take("request_closed", parked.request_id)
    assert not recorder.take("answer_suspected")
    assert not recorder.take("load_outcome")


@BOTH
def test_aborted_while_waiting(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """An abort ends the deferral and leaves nothing behind."""
    from vllm.v1.request import RequestStatus

    scheduler = make_scheduler(kind)
    parked = park(scheduler)
    scheduler.finish_requests(parked.request_id, RequestStatus.FINISHED_ABORTED)
    (end,) = recorder.take("deferral_end", parked.request_id)
    (closed,) = recorder.take("request_closed", parked.request_id)
    assert end.ending == c.DEFERRAL_ENDING_ABORTED
    assert (closed.finish_reason, closed.scheduled_time_unix_nano) == ("abort", 0)
    assert not recorder.snapshot().deferred
    step(scheduler, finished_recving={parked.request_id})
    assert parked.request_id not in scheduler.requests
    assert not recorder.take("lease_closed")


def test_aborted_after_a_failure(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A request that leaves before all ranks have failed was aborted, not failed."""
    from vllm.v1.request import RequestStatus

    scheduler = make_scheduler()
    parked = park(scheduler)
    step(scheduler, kv_connector_worker_meta=WorkerReport(failures=(failure(parked.request_id),)))
    scheduler.finish_requests(parked.request_id, RequestStatus.FINISHED_ABORTED)
    (outcome,) = recorder.take("load_outcome", parked.request_id)
    assert (outcome.outcome, outcome.mode) == (c.OUTCOME_ABORTED, c.FAILURE_MODE_HANDSHAKE)


@BOTH
def test_request_closed(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A finished request tells who asked for it, whom it read from and what came of it, as it was at arrival."""
    scheduler = make_scheduler(kind)
    parked = park(scheduler, trace_headers={"traceparent": TRACEPARENT, "tracestate": "a=b"})
    assert parked.kv_transfer_params["do_remote_prefill"] is False  # vLLM has changed it by now
    step(scheduler, finished_recving={parked.request_id})
    while parked.request_id in scheduler.requests:
        step(scheduler)
    (closed,) = recorder.take("request_closed", parked.request_id)
    assert (closed.traceparent, closed.tracestate) == (TRACEPARENT, "a=b")
    assert (closed.external_request_id, closed.kv_role) == ("cmpl-a-0", c.ROLE_DECODE)
    assert (closed.peer.address, closed.peer.engine_id) == (PEER, "prefill-engine")
    assert closed.remote_request_id == REMOTE["remote_request_id"]
    assert (closed.prompt_tokens, closed.output_tokens, closed.external_cached_tokens) == (
        3 * BLOCK,
        2,
        3 * BLOCK,
    )
    assert 0 < closed.arrival_time_unix_nano <= closed.scheduled_time_unix_nano
    assert closed.scheduled_time_unix_nano <= closed.first_token_time_unix_nano
    assert (closed.finish_reason, closed.leased_blocks) == ("length", 0)


@BOTH
@pytest.mark.parametrize("expired", [False, True])
def test_lease(kind: str, expired: bool, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """The prefill side holds blocks for the reader until they are read or the lease runs out."""
    scheduler = make_scheduler(kind, role="kv_producer")
    prefilled = request("prefill-12345678", params=LOCAL, max_tokens=1)
    scheduler.add_request(prefilled)
    while not prefilled.is_finished():
        step(scheduler)
    (closed,) = recorder.take("request_closed", prefilled.request_id)
    assert (closed.kv_role, closed.leased_blocks) == (c.ROLE_PREFILL, 3)
    leases = recorder.snapshot().leases
    assert (leases.count, leases.blocks) == (1, 3)
    assert leases.oldest_start_time_unix_nano > 0
    report = WorkerReport(expired=(prefilled.request_id,)) if expired else None
    step(scheduler, finished_sending={prefilled.request_id}, kv_connector_worker_meta=report)
    (ended,) = recorder.take("lease_closed", prefilled.request_id)
    assert ended.ending == (c.LEASE_ENDING_EXPIRED if expired else c.LEASE_ENDING_READ)
    assert (ended.blocks, ended.connector) == (3, "NixlConnector")
    assert recorder.snapshot().leases.count == 0
    assert prefilled.request_id not in scheduler.requests


def test_grammar(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A request that waits for its grammar is deferred once, until the grammar is there."""
    from vllm.v1.request import RequestStatus
    from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

    scheduler = make_scheduler()
    waiting = request("grammar-12345678")
    waiting.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    scheduler.add_request(waiting)
    step(scheduler)
    step(scheduler)
    assert [each.reason for each in recorder.snapshot().deferred] == [c.DEFERRAL_REASON_GRAMMAR]
    waiting.structured_output_request = SimpleNamespace(
        grammar=MagicMock(StructuredOutputGrammar), reasoning_ended=False, reasoning_end_token_index=None
    )
    step(scheduler)
    assert recorder.kinds() == ["deferral_start", "deferral_end"]
    assert recorder.take("deferral_end")[0].ending == c.DEFERRAL_ENDING_READY


def test_kv_lookup(
    make_scheduler: MakeScheduler, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connector that asks for patience defers the request until it has an answer."""
    scheduler = make_scheduler()
    answers = iter([(None, False), (None, False), (0, False)])
    monkeypatch.setattr(
        scheduler.connector.connector_scheduler, "get_num_new_matched_tokens", lambda *_: next(answers)
    )
    scheduler.add_request(request("lookup-12345678", max_tokens=1))
    for _ in range(3):
        step(scheduler)
    assert recorder.kinds() == ["deferral_start", "deferral_end", "request_closed"]
    assert recorder.take("deferral_start")[0].reason == c.DEFERRAL_REASON_KV_LOOKUP


def test_engine_facts(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """The snapshot says what the engine is and what it does about failed loads now."""
    scheduler = make_scheduler("async", own="fail")
    snapshot = recorder.snapshot()
    facts = snapshot.engine
    assert (facts.kv_connector, facts.kv_role, facts.kv_load_failure_policy) == (
        "NixlConnector",
        "kv_consumer",
        "fail",
    )
    assert (facts.role, facts.role_guessed) == (c.ROLE_DECODE, True)
    assert (facts.block_size, facts.num_gpu_blocks, facts.async_scheduling) == (BLOCK, 100, True)
    assert facts.kv_engine_id == scheduler.vllm_config.kv_transfer_config.engine_id
    assert facts.scheduler_class == "vllm.v1.core.sched.async_scheduler.AsyncScheduler"
    assert facts.vllm_version
    assert (facts.transfer_mode, facts.pipeline_parallel_size, facts.kv_cache_dtype) == ("pull", 1, "auto")
    assert facts.kv_heads > 0
    assert not facts.latent_attention
    assert snapshot.policy.kv_action == "fail"
    runtime.policy.swap(policy("recompute"), 1.0)
    assert recorder.snapshot().policy.kv_action == "recompute"


def test_a_child_of_several_connectors_tells_where_it_listens(
    make_scheduler: MakeScheduler, recorder: Recorder, tmp_path: Path
) -> None:
    """What others ask is NIXL's side channel, whatever stands before it: by it engines with one id are told apart before traffic."""
    children = with_nixl(tmp_path)["kv_connector_extra_config"]["connectors"]
    extra = {"connectors": [*reversed(children)]}
    make_scheduler(
        kv_connector="MultiConnector", role="kv_both", kv_connector_extra_config=extra, engine_id="fixed"
    )
    facts = recorder.snapshot().engine
    assert (facts.kv_connector, facts.kv_engine_id, facts.transfer_mode) == (
        "MultiConnector",
        "fixed",
        "pull",
    )
    assert facts.side_channel.rpartition(":")[2].isdigit()


def test_nothing_is_kept(make_scheduler: MakeScheduler) -> None:
    """When all requests have left, the observer remembers none of them."""
    from vllm.v1.request import RequestStatus

    scheduler = make_scheduler(own="recompute")
    for index in range(5):
        parked = park(scheduler, f"request-{index}", first=10 + index)
        if index % 2:
            fail_load(scheduler, parked)
    scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
    observer = scheduler._penstock.observer
    assert not observer._records
    assert not observer.awaiting_token
    assert not observer._deferrals._open
    assert not observer.deferred
    # vLLM keeps the blocks of loads that were aborted, and their requests with them.
    assert set(observer._held._held) == set(scheduler.requests)


def test_errors_of_ours_are_contained(make_scheduler: MakeScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken parts change nothing: the request is served, the errors are counted."""
    from penstock.instrumentation.core.guard import guard

    scheduler = make_scheduler(own="recompute")
    monkeypatch.setattr(guard, "raising", False)

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("ours")

    class Broken:
        def __getattr__(self, name: str) -> Any:
            return (lambda *_: False) if name in {"is_deferred", "waits_for"} else broken

    with monkeypatch.context() as patch:
        for part in ("observer", "loads", "media", "_waiting"):
            patch.setattr(scheduler._penstock, part, Broken())
        parked = park(scheduler)
        fail_load(scheduler, parked)
        while parked.request_id in scheduler.requests:
            step(scheduler)
    assert parked.status.name == "FINISHED_LENGTH_CAPPED"
    assert guard.counts.drain()


def test_host_errors_pass(make_scheduler: MakeScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of vLLM's own reaches vLLM, and its switch is put back."""
    scheduler = make_scheduler(own="fail")
    runtime.policy.swap(policy("recompute"), 1.0)
    parked = park(scheduler)
    monkeypatch.setattr(
        scheduler, "_update_from_kv_xfer_finished", lambda _: (_ for _ in ()).throw(KeyError("vLLM's own"))
    )
    with pytest.raises(KeyError, match="vLLM's own"):
        fail_load(scheduler, parked)
    assert scheduler.recompute_kv_load_failures is False
    assert runtime.policy.swap(policy("fail"), 1.0)
