"""Reflexes in a real scheduler: what it measures, what it gives up and leaves out by that, and what it leaves alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv import decider, reflexes
from penstock.instrumentation.vllm.messages.worker_report import WorkerReport
from penstock.rules.measured_times import MIN_SAMPLES
from penstock.rules.policy import (
    NO_POLICY,
    Action,
    Deferral,
    KvLoadFailure,
    PeerQuarantine,
    Policy,
    PolicyBody,
    RecomputeStormReflex,
    ReflexAction,
    Reflexes,
    SlowPeerReflex,
    StartWaitReflex,
)

from tests.support.engine.parked import fail_loads, finish_loads, park, remote, serve, stop_reasons
from tests.support.engine.schedulers import PEER, request, step
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]

ENFORCE, OBSERVE = ReflexAction.ENFORCE, ReflexAction.OBSERVE
FAIL, AUTO = KvLoadFailure(Action.FAIL), KvLoadFailure(Action.AUTO, tokens_per_second=1)
PROMPT = 96


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """Give deadlines and reflexes a clock that only the test moves."""
    clock = ManualClock()
    for module in (decider, reflexes):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic_ns=clock))
    return clock


def start_wait(action: ReflexAction | None = ENFORCE, *, per_minute: int | None = None) -> Reflexes:
    """Return the reflex about starts, which waits for five seconds at least: computing takes microseconds here."""
    return Reflexes(per_minute, start_wait=StartWaitReflex(action, min_wait=5.0))


def slow_peer(action: ReflexAction | None = ENFORCE, *, per_minute: int | None = None) -> Reflexes:
    """Return the reflex about slow peers."""
    return Reflexes(per_minute, slow_peer=SlowPeerReflex(action))


def force(found: Reflexes | None, kv: KvLoadFailure | None = FAIL, **more: Any) -> None:
    """Put a policy in force that has these reflexes; what fails, fails."""
    runtime.policy.swap(Policy(hash="h", kv_load_failure=kv, reflexes=found, **more), 1.0)


def compute(scheduler: Any, number: int = MIN_SAMPLES) -> None:
    """Serve so many requests that compute their prompts here."""
    for each in range(number):
        own = request(f"own-{each}", first=100 + each)
        scheduler.add_request(own)
        serve(scheduler, own)


def load(scheduler: Any, clock: ManualClock, seconds: float, number: int = MIN_SAMPLES) -> None:
    """Serve so many requests whose load from the peer takes so long."""
    for each in range(number):
        loading = park(scheduler, f"loading-{each}", first=200 + each)
        clock.advance(seconds)
        finish_loads(scheduler, loading)
        serve(scheduler, loading)


def give_up(scheduler: Any, *waiting: Any, mode: int = c.FAILURE_MODE_TIMEOUT) -> Any:
    """Let one step report that a worker has ended these loads by order of a reflex."""
    return fail_loads(scheduler, *waiting, mode=mode, given_up=True)


def overdue(
    make_scheduler: MakeScheduler,
    clock: ManualClock,
    kv: KvLoadFailure = FAIL,
    found: Reflexes | None = None,
    kind: str = "sync",
    **more: Any,
) -> tuple[Any, Any]:
    """Return a scheduler and a request of which a step has ordered that its load be given up."""
    scheduler = make_scheduler(kind)
    force(found or start_wait(), kv, **more)
    compute(scheduler)
    parked = park(scheduler, "r")
    clock.advance(6)
    assert cancelled(scheduler) == {"r": "reflexes.startWait"}
    return scheduler, parked


def failed_in(scheduler: Any, request: Any) -> dict[str, Any]:
    """Let a step say that the load of a request has failed, and not why; return which requests fail."""
    blocks = {
        each for group in scheduler.kv_cache_manager.get_block_ids(request.request_id) for each in group
    }
    ids = {request.request_id}
    told = step(scheduler, finished_recving=ids, failed_recving=ids, invalid_block_ids=blocks)
    return stop_reasons(told)


def cancelled(scheduler: Any) -> dict[str, str]:
    """Return what a step with nothing to run names to the workers, and why."""
    output = scheduler.schedule()
    assert not output.num_scheduled_tokens
    return dict(getattr(output.kv_connector_metadata, "penstock_cancel", {}))


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_start_that_is_dearer_than_computing(
    kind: str, make_scheduler: MakeScheduler, recorder: Recorder, clock: ManualClock
) -> None:
    """The worker ends the load, the request computes its prompt, and nothing fails although failed loads fail."""
    scheduler = make_scheduler(kind)
    force(start_wait())
    compute(scheduler)
    parked = park(scheduler, "r")
    clock.advance(4)
    assert not cancelled(scheduler)
    clock.advance(2)
    assert cancelled(scheduler) == cancelled(scheduler) == {"r": "reflexes.startWait"}
    told = stop_reasons(give_up(scheduler, parked))
    serve(scheduler, parked)
    assert not told
    (found,) = recorder.take("load_outcome", "r")
    assert (found.outcome, found.decided_by, found.mode) == (
        c.OUTCOME_RECOMPUTED,
        c.DECIDED_BY_REFLEX,
        c.FAILURE_MODE_TIMEOUT,
    )
    assert found.reason.startswith(
        "the wait was dearer than computing; reflexes.startWait: 6 s waited for the load to begin, computing 96"
    )
    (end,) = recorder.take("deferral_end", "r")
    assert end.ending == c.DEFERRAL_ENDING_TIMEOUT
    assert not cancelled(scheduler)


@pytest.mark.parametrize(
    ("found", "kv", "computed", "why"),
    [
        (start_wait(OBSERVE), FAIL, MIN_SAMPLES, "here"),
        (start_wait(None), FAIL, MIN_SAMPLES, "here"),
        (start_wait(per_minute=1), FAIL, MIN_SAMPLES, "here; perMinute is reached"),
        (start_wait(), AUTO, MIN_SAMPLES, "here; kvLoadFailure has no room for it"),
        (
            start_wait(),
            KvLoadFailure(Action.AUTO, max_recompute_tokens=50),
            MIN_SAMPLES,
            "here; kvLoadFailure has no room for it",
        ),
        (start_wait(), FAIL, MIN_SAMPLES - 1, ""),
        (Reflexes(), FAIL, MIN_SAMPLES, ""),
        (None, FAIL, MIN_SAMPLES, ""),
    ],
    ids=[
        "observe",
        "by default",
        "per minute",
        "no budget",
        "too large",
        "no price",
        "none set",
        "no section",
    ],
)
def test_a_start_that_is_waited_for(
    found: Reflexes | None,
    kv: KvLoadFailure,
    computed: int,
    why: str,
    make_scheduler: MakeScheduler,
    recorder: Recorder,
    clock: ManualClock,
) -> None:
    """It only says what it would have done, once the wait has ended well, and why it has not."""
    scheduler = make_scheduler()
    force(found, kv)
    compute(scheduler, computed)
    if "perMinute" in why:
        other = park(scheduler, "other", first=300)
        clock.advance(6)
        assert cancelled(scheduler)
        give_up(scheduler, other)
        serve(scheduler, other)
    parked = park(scheduler, "r")
    clock.advance(6)
    assert not cancelled(scheduler)
    finish_loads(scheduler, parked)
    serve(scheduler, parked)
    assert not recorder.take("load_outcome", "r")
    (end,) = recorder.take("deferral_end", "r")
    assert end.ending == c.DEFERRAL_ENDING_READY
    assert end.observed_reason.endswith(why)
    assert end.observed_reason.startswith("reflexes.startWait: 6 s waited") is bool(why)


def test_a_transfer_that_begins_meanwhile(
    make_scheduler: MakeScheduler, recorder: Recorder, clock: ManualClock
) -> None:
    """What the worker no longer takes back goes on, under the transfer's own deadline; if it fails, that is no reflex."""
    scheduler = make_scheduler()
    force(start_wait())
    compute(scheduler)
    parked = park(scheduler, "r")
    clock.advance(6)
    assert cancelled(scheduler)
    step(scheduler, kv_connector_worker_meta=WorkerReport(began=(("r", 4711),)))
    assert not cancelled(scheduler)
    clock.advance(60)
    assert not cancelled(scheduler)
    told = stop_reasons(fail_loads(scheduler, parked, mode=c.FAILURE_MODE_TRANSFER))
    assert "r" in told
    (found,) = recorder.take("load_outcome", "r")
    assert (found.outcome, found.decided_by) == (c.OUTCOME_FAILED, c.DECIDED_BY_POLICY)


def test_a_reflex_says_nothing_against_the_peer(
    make_scheduler: MakeScheduler, recorder: Recorder, clock: ManualClock
) -> None:
    """Our own impatience opens no quarantine."""
    scheduler = make_scheduler()
    force(start_wait(), peer_quarantine=PeerQuarantine(failures=1, max_peers_percent=100))
    compute(scheduler)
    parked = park(scheduler, "r")
    clock.advance(6)
    assert cancelled(scheduler)
    give_up(scheduler, parked)
    serve(scheduler, parked)
    assert not recorder.take("quarantine_changed")


@pytest.mark.parametrize(
    ("deferral", "seconds", "wait"),
    [
        (Deferral(max_start_wait=20.0), 600, "maxStartWait"),
        (None, 600, "reflexes.startWait"),
    ],
)
def test_the_deadlines_go_on(
    deferral: Deferral | None, seconds: float, wait: str, make_scheduler: MakeScheduler, clock: ManualClock
) -> None:
    """A worker that cannot give a load up says nothing: the policy's own deadline still comes."""
    scheduler, _ = overdue(make_scheduler, clock, deferral=deferral)
    clock.advance(seconds)
    assert cancelled(scheduler) == {"r": wait}


def test_another_failure_meanwhile(
    make_scheduler: MakeScheduler, recorder: Recorder, clock: ManualClock
) -> None:
    """It is decided about as if there were no reflex, and by no deadline."""
    deferral = Deferral(max_start_wait=600.0, on_timeout=Action.FAIL)
    scheduler, parked = overdue(make_scheduler, clock, KvLoadFailure(Action.RECOMPUTE), deferral=deferral)
    assert not stop_reasons(fail_loads(scheduler, parked, mode=c.FAILURE_MODE_HANDSHAKE))
    serve(scheduler, parked)
    (found,) = recorder.take("load_outcome", "r")
    assert (found.outcome, found.decided_by) == (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_POLICY)


@pytest.mark.parametrize("mode", [c.FAILURE_MODE_COLLATERAL, c.FAILURE_MODE_TIMEOUT])
def test_what_is_given_up_is_computed(
    mode: int, make_scheduler: MakeScheduler, recorder: Recorder, clock: ManualClock
) -> None:
    """Whoever held the start up."""
    scheduler, parked = overdue(make_scheduler, clock)
    assert not stop_reasons(give_up(scheduler, parked, mode=mode))
    serve(scheduler, parked)
    (found,) = recorder.take("load_outcome", "r")
    assert (found.outcome, found.decided_by) == (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_REFLEX)


def test_a_report_that_is_lost(make_scheduler: MakeScheduler, recorder: Recorder, clock: ManualClock) -> None:
    """A load that fails without a reason while the order is out was given up by that."""
    scheduler, parked = overdue(make_scheduler, clock)
    assert not failed_in(scheduler, parked)
    serve(scheduler, parked)
    (found,) = recorder.take("load_outcome", "r")
    assert found.decided_by == c.DECIDED_BY_REFLEX


def test_one_rank_has_begun_and_another_gives_up(
    make_scheduler: MakeScheduler, recorder: Recorder, clock: ManualClock
) -> None:
    """The request is computed, and no peer is blamed."""
    quarantine = PeerQuarantine(failures=1, max_peers_percent=100)
    scheduler, parked = overdue(make_scheduler, clock, kind="async", peer_quarantine=quarantine)
    step(scheduler, kv_connector_worker_meta=WorkerReport(began=(("r", 4711),)))
    assert not stop_reasons(give_up(scheduler, parked))
    serve(scheduler, parked)
    assert not recorder.take("quarantine_changed")
    (found,) = recorder.take("load_outcome", "r")
    assert (found.outcome, found.decided_by) == (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_REFLEX)


def test_the_budget_holds_for_all_together(make_scheduler: MakeScheduler, clock: ManualClock) -> None:
    """What is given up and not yet decided about has its share of it."""
    scheduler = make_scheduler()
    force(start_wait(), KvLoadFailure(Action.AUTO, tokens_per_second=100))
    compute(scheduler)
    for number in range(3):
        park(scheduler, f"r-{number}", first=300 + number)
    clock.advance(6)
    assert len(cancelled(scheduler)) == 1


@pytest.mark.parametrize(
    "after",
    [NO_POLICY, Policy(hash="o", kv_load_failure=FAIL, reflexes=start_wait(OBSERVE))],
    ids=["none", "observe"],
)
def test_a_policy_that_ends_takes_its_orders_back(
    after: Policy, make_scheduler: MakeScheduler, recorder: Recorder, clock: ManualClock
) -> None:
    """What a worker has obeyed already is computed all the same."""
    scheduler, parked = overdue(make_scheduler, clock)
    runtime.policy.swap(after, 1.0)
    assert not cancelled(scheduler)
    assert not stop_reasons(give_up(scheduler, parked))
    serve(scheduler, parked)
    (found,) = recorder.take("load_outcome", "r")
    assert (found.outcome, found.decided_by) == (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_REFLEX)


def test_a_reflex_that_is_no_longer_there_says_nothing(
    make_scheduler: MakeScheduler, recorder: Recorder, clock: ManualClock
) -> None:
    """Another one stays."""
    scheduler = make_scheduler()
    force(Reflexes(start_wait=start_wait().start_wait, slow_peer=slow_peer().slow_peer))
    compute(scheduler)
    parked = park(scheduler, "r")
    force(slow_peer())
    clock.advance(6)
    assert not cancelled(scheduler)
    finish_loads(scheduler, parked)
    serve(scheduler, parked)
    (end,) = recorder.take("deferral_end", "r")
    assert not end.observed_reason


def test_a_client_that_does_not_wait(
    make_scheduler: MakeScheduler, recorder: Recorder, clock: ManualClock
) -> None:
    """What would have helped is said, too."""
    scheduler = make_scheduler()
    force(start_wait(OBSERVE))
    compute(scheduler)
    park(scheduler, "r")
    clock.advance(6)
    assert not cancelled(scheduler)
    from vllm.v1.request import RequestStatus

    scheduler.finish_requests("r", RequestStatus.FINISHED_ABORTED)
    (end,) = recorder.take("deferral_end", "r")
    assert end.observed_reason.startswith("reflexes.startWait")


def test_a_peer_that_is_slow(make_scheduler: MakeScheduler, recorder: Recorder, clock: ManualClock) -> None:
    """Its blocks are not loaded, the prompt is computed; after a minute without a load it is asked again."""
    scheduler = make_scheduler()
    force(slow_peer())
    compute(scheduler)
    load(scheduler, clock, 3.0)
    left_out = request("r", params=remote(PEER, request_id="their-r"))
    scheduler.add_request(left_out)
    serve(scheduler, left_out)
    (found,) = recorder.take("load_outcome", "r")
    assert (found.outcome, found.decided_by, found.mode) == (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_REFLEX, 0)
    assert found.reason.startswith(
        "the peer is slow; reflexes.slowPeer: its loads take 3 s or more, computing 96"
    )
    assert found.peer.address == PEER
    assert not recorder.take("deferral_start", "r")
    clock.advance(61)
    park(scheduler, "later", first=400)


@pytest.mark.parametrize(
    ("found", "computed", "loaded", "why"),
    [
        (slow_peer(OBSERVE), MIN_SAMPLES, MIN_SAMPLES, "here"),
        (slow_peer(per_minute=1), MIN_SAMPLES, MIN_SAMPLES, "here; perMinute is reached"),
        (slow_peer(), MIN_SAMPLES, MIN_SAMPLES - 1, ""),
        (slow_peer(), MIN_SAMPLES - 1, MIN_SAMPLES, ""),
    ],
    ids=["observe", "per minute", "no times of loads", "no price"],
)
def test_a_slow_peer_that_is_loaded_from(
    found: Reflexes,
    computed: int,
    loaded: int,
    why: str,
    make_scheduler: MakeScheduler,
    recorder: Recorder,
    clock: ManualClock,
) -> None:
    """It only says what it would have done."""
    scheduler = make_scheduler()
    force(found)
    compute(scheduler, computed)
    load(scheduler, clock, 3.0, loaded)
    if "perMinute" in why:
        other = request("other", first=300, params=remote(PEER, request_id="their-other"))
        scheduler.add_request(other)
        serve(scheduler, other)
    parked = park(scheduler, "r")
    finish_loads(scheduler, parked)
    serve(scheduler, parked)
    assert not recorder.take("load_outcome", "r")
    (end,) = recorder.take("deferral_end", "r")
    assert end.observed_reason.endswith(why)
    assert end.observed_reason.startswith("reflexes.slowPeer: ") is bool(why)


def test_a_storm_is_told_of(make_scheduler: MakeScheduler, recorder: Recorder, clock: ManualClock) -> None:
    """While requests queue and others are recomputed, the outcomes say what would have failed; nothing does."""
    scheduler = make_scheduler()
    force(
        Reflexes(recompute_storm=RecomputeStormReflex(ENFORCE, queue_wait=0.001)),
        KvLoadFailure(Action.RECOMPUTE),
    )
    late = request("late", first=500)
    late.arrival_time -= 5
    scheduler.add_request(late)
    serve(scheduler, late)
    outcomes = []
    for number in range(2):
        parked = park(scheduler, f"r-{number}", first=600 + number)
        fail_loads(scheduler, parked)
        serve(scheduler, parked)
        outcomes += recorder.take("load_outcome", f"r-{number}")
    assert [each.outcome for each in outcomes] == [c.OUTCOME_RECOMPUTED] * 2
    assert outcomes[0].observed_outcome == c.OUTCOME_FAILED
    assert outcomes[0].observed_reason.startswith(
        "reflexes.recomputeStorm: requests queue for more than 0.001 s"
    )


def test_without_a_policy_nothing_is_measured(make_scheduler: MakeScheduler, clock: ManualClock) -> None:
    """A policy that ends forgets what was measured, and one in mode observe never acts."""
    scheduler = make_scheduler()
    force(start_wait())
    compute(scheduler)
    runtime.policy.swap(NO_POLICY, 1.0)
    compute(scheduler)
    force(start_wait())
    park(scheduler, "r", first=300)
    clock.advance(60)
    assert not cancelled(scheduler)
    compute(scheduler)
    runtime.policy.swap(Policy(hash="o", observed=PolicyBody(reflexes=start_wait())), 1.0)
    park(scheduler, "s", first=301)
    clock.advance(60)
    assert not cancelled(scheduler)


def test_requests_with_media_are_left_alone(make_scheduler: MakeScheduler, clock: ManualClock) -> None:
    """An input that would have to be encoded again may be elsewhere."""
    scheduler = make_scheduler()
    force(Reflexes(start_wait=start_wait().start_wait, slow_peer=slow_peer().slow_peer))
    compute(scheduler)
    load(scheduler, clock, 3.0)
    with_media = request("r", params=remote(PEER, request_id="their-r"))
    with_media.mm_features = [
        SimpleNamespace(mm_position=SimpleNamespace(offset=0, length=1), identifier="i")
    ]
    scheduler.add_request(with_media)
    step(scheduler)
    assert with_media.status.name == "WAITING_FOR_REMOTE_KVS"
    clock.advance(60)
    assert not cancelled(scheduler)


def test_a_price_outlasts_many_loads(make_scheduler: MakeScheduler, clock: ManualClock) -> None:
    """A server that loads nearly all of its prompts still knows what computing one takes."""
    scheduler = make_scheduler()
    force(start_wait())
    compute(scheduler)
    load(scheduler, clock, 1.0, 70)
    park(scheduler, "r", first=300)
    clock.advance(6)
    assert cancelled(scheduler)
