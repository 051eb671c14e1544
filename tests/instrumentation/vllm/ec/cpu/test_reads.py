"""Reads of ECCPUConnector over real NIXL, and its fall-backs, which vLLM makes inside the scheduler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.ec import waits
from penstock.rules.policy import Action, Deferral
from vllm.distributed.ec_transfer.ec_connector.cpu import scheduler as cpu_scheduler
from vllm.distributed.ec_transfer.ec_connector.cpu import session as cpu_session

from demo.common.steps import until
from demo.servers import LOOPBACK
from tests.support.ec.decisions import OUTPUTS, act, image, outcome_of
from tests.support.ec.fake_ec import expected
from tests.support.ec.mooncake import NBYTES
from tests.support.engine.recorder import policy
from tests.support.engine.versions import from_version
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakeCpu = Callable[..., Any]

pytestmark = pytest.mark.filterwarnings("ignore:Unclosed socket:ResourceWarning")
KINDS = pytest.mark.parametrize("kind", ["sync", "async"])
RECOMPUTED, FAILED = c.OUTCOME_RECOMPUTED, c.OUTCOME_FAILED
BY_POLICY = pytest.mark.parametrize(
    ("action", "items", "media", "outcome", "decided_by"),
    [
        ("", None, True, RECOMPUTED, c.DECIDED_BY_VLLM),
        ("", None, False, FAILED, c.DECIDED_BY_VLLM),
        ("recompute", None, True, RECOMPUTED, c.DECIDED_BY_POLICY),
        ("recompute", None, False, FAILED, c.DECIDED_BY_POLICY),
        ("auto", 2, True, RECOMPUTED, c.DECIDED_BY_POLICY),
        ("auto", 0, True, FAILED, c.DECIDED_BY_POLICY),
        ("fail", None, True, FAILED, c.DECIDED_BY_POLICY),
    ],
)


def check(engine: Any, recorder: Recorder, request: Any, outcome: int, decided_by: int, told: str) -> Any:
    """Check the outcome of a request and what its client gets: *told* is in the sentence, empty for none; return the outcome."""
    found = outcome_of(recorder, request)
    assert (found.outcome, found.decided_by, found.channel) == (outcome, decided_by, c.CHANNEL_EC)
    if outcome == RECOMPUTED:
        assert engine.outputs[request.request_id] == expected(request, OUTPUTS)
        assert not engine.errors
    else:
        assert engine.errors.keys() == {request.request_id}
        sentence = engine.errors[request.request_id] or ""
        assert (told in sentence) if told else not sentence
    assert not engine.scheduler._penstock.ec._loads._without
    assert not engine.scheduler._penstock.ec._loads._lost
    return found


@KINDS
def test_a_read_is_reported_on_both_sides(kind: str, make_cpu: MakeCpu, recorder: Recorder) -> None:
    """Probe, transfer with peer, bytes and request, the producer's grant; the item comes from this machine's memory in the end."""
    engine = make_cpu(kind)
    (producer,) = engine.producers
    producer.save("a")
    first = producer.announced(image("first", "a"))
    engine.scheduler.add_request(first)
    engine.run_off()
    engine.step_until(lambda: len(recorder.transfers) >= 2, "one side has not reported the read")
    assert engine.outputs["first"] == expected(first, OUTPUTS)
    assert (engine.loaded, engine.encoded) == (["a"], [])
    peer = f"{LOOPBACK}:{producer.port}"
    by_direction = {each["direction"]: each for each in recorder.transfers}
    received, sent = by_direction[c.DIRECTION_RECEIVE], by_direction[c.DIRECTION_SEND]
    assert (received["peer"], received["bytes"], received["request_id"]) == (peer, NBYTES, "first")
    assert (sent["peer"], sent["bytes"]) == ("unknown", NBYTES)
    assert {each["result"] for each in recorder.transfers} == {c.TRANSFER_RESULT_OK}
    assert [(each["peer"], each["result"]) for each in recorder.probes] == [
        (peer, c.PROBE_RESULT_HIT),
        ("host", c.PROBE_RESULT_HIT),
    ]
    (end,) = recorder.take("deferral_end", "first")
    assert (end.ending, end.peer.address) == (c.DEFERRAL_ENDING_READY, peer)
    assert end.transfer_start_time_unix_nano
    assert not recorder.take("transfer_failure")
    assert not recorder.take("load_outcome")
    assert not recorder.snapshot().in_flight


@KINDS
def test_a_read_that_begins_and_ends_between_two_polls(
    kind: str, make_cpu: MakeCpu, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait's end says when the read began."""
    engine = make_cpu(kind)
    data = engine.part._data
    post_read = data.post_read

    def read_at_once(*args: Any, **more: Any) -> Any:
        handle = post_read(*args, **more)
        until(lambda: data.check_xfer_state(handle) == "DONE", "the read does not end")
        return handle

    monkeypatch.setattr(data, "post_read", read_at_once)
    (producer,) = engine.producers
    producer.save("a")
    engine.scheduler.add_request(producer.announced(image("first", "a")))
    engine.run_off()
    (end,) = recorder.take("deferral_end", "first")
    (received,) = [each for each in recorder.transfers if each["direction"] == c.DIRECTION_RECEIVE]
    began_ns = received["end_time_unix_nano"] - received["duration_nano"]
    assert end.transfer_start_time_unix_nano == began_ns


@KINDS
@BY_POLICY
def test_an_item_that_the_producer_does_not_have(
    kind: str,
    action: str,
    items: int | None,
    media: bool,
    outcome: int,
    decided_by: int,
    make_cpu: MakeCpu,
    recorder: Recorder,
) -> None:
    """VLLM encodes it here, and only logs that; a policy may rather fail the request. Without media vLLM fails it."""
    engine = make_cpu(kind)
    if action:
        act(action, items)
    assert recorder.snapshot().policy.ec_action == (action or "recompute")
    (producer,) = engine.producers
    first = producer.announced(image("first", "a", media=media))
    engine.scheduler.add_request(first)
    engine.run_off()
    found = check(engine, recorder, first, outcome, decided_by, "mode probe" if action else "")
    peer = f"{LOOPBACK}:{producer.port}"
    assert (found.mode, found.error_type) == (c.FAILURE_MODE_PROBE, c.ERROR_TYPE_EVICTED)
    assert found.peer.address == peer
    (failure,) = recorder.take("transfer_failure", "first")
    assert (failure.mode, failure.peer.address, failure.item) == (c.FAILURE_MODE_PROBE, peer, "a")
    assert recorder.probes[0]["result"] == c.PROBE_RESULT_MISS
    assert not recorder.transfers


@pytest.mark.parametrize("action", ["", "fail"])
def test_a_producer_of_another_kind(action: str, make_cpu: MakeCpu, recorder: Recorder) -> None:
    """Both sides say that they do not fit."""
    if action:
        act(action)
    engine = make_cpu()
    (producer,) = engine.producers
    producer.save("a")
    producer.part._producer_session._compat_hash = "another"
    first = producer.announced(image("first", "a"))
    engine.scheduler.add_request(first)
    engine.run_off()
    outcome, by = (FAILED, c.DECIDED_BY_POLICY) if action else (RECOMPUTED, c.DECIDED_BY_VLLM)
    found = check(engine, recorder, first, outcome, by, "mode handshake")
    assert (found.mode, found.error_type) == (c.FAILURE_MODE_HANDSHAKE, c.ERROR_TYPE_INCOMPATIBLE)
    failures = recorder.take("transfer_failure")
    assert {each.direction for each in failures} == {c.DIRECTION_SEND, c.DIRECTION_RECEIVE}
    assert {each.error_type for each in failures} == {c.ERROR_TYPE_INCOMPATIBLE}


@KINDS
def test_a_producer_that_is_gone(
    kind: str, make_cpu: MakeCpu, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked again until the connector's patience ends; each time is a failed probe."""
    monkeypatch.setattr(cpu_scheduler, "_ADMIT_DEFER_TIMEOUT_S", 0.3)
    engine = make_cpu(kind, consumer_ack_timeout_s=0.1)
    (producer,) = engine.producers
    engine.producers.clear()  # it does not answer
    first = producer.announced(image("first", "a"))
    engine.scheduler.add_request(first)
    engine.run_off()
    found = check(engine, recorder, first, RECOMPUTED, c.DECIDED_BY_VLLM, "")
    assert (found.mode, found.error_type) == (c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT)
    modes = [each.mode for each in recorder.take("transfer_failure", "first")]
    # On a busy machine the last question ends behind the wait.
    modes.remove(c.FAILURE_MODE_TIMEOUT)
    assert set(modes) == {c.FAILURE_MODE_PROBE}
    results = [each["result"] for each in recorder.probes[:-1]]
    # Likewise: it is given up with the wait, not by the connector's own patience.
    while results and results[-1] != c.PROBE_RESULT_ERROR:
        results.pop()
    assert set(results) == {c.PROBE_RESULT_ERROR}


@pytest.mark.parametrize(
    ("more", "error_type"),
    [
        pytest.param(
            {"shape": [1, 64]},
            c.ERROR_TYPE_INCOMPATIBLE,
            marks=from_version(0, 32, "looks at no announced shape"),
        ),
        ({"size_bytes": "many"}, c.ERROR_TYPE_INCOMPATIBLE),
        ({"peer_port": "none"}, c.ERROR_TYPE_OTHER),
    ],
)
def test_an_announcement_that_is_wrong(
    more: dict[str, Any], error_type: int, make_cpu: MakeCpu, recorder: Recorder
) -> None:
    """What a client makes up is a failure in the set-up, and the item is encoded here."""
    engine = make_cpu()
    (producer,) = engine.producers
    first = producer.announced(image("first", "a"), **more)
    engine.scheduler.add_request(first)
    engine.run_off()
    found = check(engine, recorder, first, RECOMPUTED, c.DECIDED_BY_VLLM, "")
    assert (found.mode, found.error_type) == (c.FAILURE_MODE_SETUP, error_type)


@pytest.mark.parametrize("on_timeout", ["recompute", "fail"])
def test_a_deadline_holds(
    on_timeout: str, make_cpu: MakeCpu, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer that does not answer is waited for as long as the policy says, not the connector's minute."""
    clock = ManualClock()
    monkeypatch.setattr(waits, "time", SimpleNamespace(monotonic_ns=clock))
    runtime.policy.swap(policy(deferral=Deferral(max_start_wait=5.0, on_timeout=Action(on_timeout))), 1.0)
    engine = make_cpu()
    (producer,) = engine.producers
    producer.save("a", ready=False)
    first = producer.announced(image("first", "a"))
    engine.scheduler.add_request(first)
    for _ in range(10):
        engine.step()
    clock.advance(6)
    engine.run_off()
    outcome = FAILED if on_timeout == "fail" else RECOMPUTED
    found = check(engine, recorder, first, outcome, c.DECIDED_BY_DEADLINE, "mode timeout")
    assert found.mode == c.FAILURE_MODE_TIMEOUT
    (end,) = recorder.take("deferral_end", "first")
    assert end.ending == c.DEFERRAL_ENDING_TIMEOUT
    # A save that has not landed is asked for again: neither a failure nor a transfer.
    assert {each.mode for each in recorder.take("transfer_failure")} == {c.FAILURE_MODE_TIMEOUT}
    assert c.PROBE_RESULT_ERROR not in {each["result"] for each in recorder.probes}


def test_a_lease_that_runs_out(
    make_cpu: MakeCpu, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that does not say that it has read costs the producer a lease: mode expired."""
    monkeypatch.setattr(cpu_session, "PRODUCER_PIN_LEASE_S", 0.0)
    engine = make_cpu(consumer_ack_timeout_s=60)  # else the lease, too
    (producer,) = engine.producers
    producer.save("a")
    engine.scheduler.add_request(producer.announced(image("first", "a")))
    engine.step_until(lambda: recorder.take("transfer_failure"), "no lease has run out")
    (failure,) = recorder.take("transfer_failure")
    assert (failure.mode, failure.direction) == (c.FAILURE_MODE_EXPIRED, c.DIRECTION_SEND)
    engine.run_off()


@KINDS
def test_items_of_this_machine(kind: str, make_cpu: MakeCpu, recorder: Recorder) -> None:
    """Without other engines: what was encoded before is found in this machine's memory."""
    engine = make_cpu(kind, role="ec_both")
    first, again = image("first", "a"), image("again", "a", first=77)
    engine.scheduler.add_request(first)
    engine.run_off()
    manager = engine.scheduler.encoder_cache_manager
    manager.reset()
    engine.cache.clear()
    engine.scheduler.add_request(again)
    engine.run_off()
    assert engine.outputs["again"] == expected(again, OUTPUTS)
    assert (engine.encoded, engine.loaded) == (["a"], ["a"])
    assert [(each["peer"], each["result"]) for each in recorder.probes] == [
        ("host", c.PROBE_RESULT_MISS),
        ("host", c.PROBE_RESULT_HIT),
    ]
    assert not recorder.take("load_outcome")
