"""ZmqECConnector between real engines: transfers, waits, deadlines, cuts, and what a policy makes of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import common_pb2 as c

from demo.common.steps import until
from demo.ec.stack import start_ec_stack
from demo.ec.steps import (
    deferred_request,
    encode_locally,
    failed_request,
    good_request,
    new_encoder,
    set_policy,
)
from tests.e2e.ec_soak import ZmqSoak
from tests.support.agent.agent import short_directory
from tests.support.ec.bench import ask
from tests.support.ec.zmq_server import INTO_THE_FIRST, INTO_THE_SECOND, SMALL_HOST_CACHE, zmq_bench
from tests.support.engine.client_errors import facts_of
from tests.support.engine.pairs import ASYNC_FORK_TP2, CPU_DEFAULTS, Variant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.ec.stack import EcStack
    from tests.support.ec.bench import Ask
    from tests.support.ec.zmq_server import ZmqBench

pytestmark = pytest.mark.engine

_IDS = ["cpu", "async-fork-tp2"]
# What the tests of the real AsyncScheduler prove without an engine is proved on one again by `make test-long`.
both = pytest.mark.parametrize(
    "served", [None, pytest.param(ASYNC_FORK_TP2, marks=pytest.mark.long)], indirect=True, ids=_IDS
)
# They may copy out of an encoder's memory. Only where drills are allowed pictures wait for that.
_AT_ONCE, _BY_THE_FETCHER = Variant("cpu-without-drills"), replace(CPU_DEFAULTS, name="cpu-same-host")
_CHANNEL = {"channel": "ec"}
_ATTEMPTS = 5


@pytest.fixture(scope="module")
def stack() -> Iterator[EcStack]:
    """Run the demo's parts."""
    with short_directory() as directory, ExitStack() as parts, pytest.MonkeyPatch.context() as patch:
        for variable in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED"):
            patch.delenv(variable, raising=False)
        yield start_ec_stack(directory, parts, lambda _: None, encoder_extra=SMALL_HOST_CACHE.settings)


@pytest.fixture(scope="module")
def served(
    stack: EcStack, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ZmqBench]:
    """Give the stack's language model, or another one beside it."""
    same_host = request.param in (_AT_ONCE, _BY_THE_FETCHER)
    logs = tmp_path_factory.mktemp("ec-zmq")
    with zmq_bench(stack, request.param, logs=logs, same_host=same_host) as bench:
        yield bench


@pytest.fixture
def ec(served: ZmqBench) -> Iterator[ZmqBench]:
    """Begin and end without a policy, and see that our code raised nothing."""
    served.forget()
    yield served
    served.forget()
    assert not served.guard_errors()


@pytest.fixture
def senders() -> Iterator[ThreadPoolExecutor]:
    """Send requests at the same time."""
    with ThreadPoolExecutor(4) as pool:
        yield pool


def _encoded(ec: ZmqBench, request: Ask, *others: Ask) -> list[tuple[int, ...]]:
    """Have the pictures of *request* encoded by the encoder; return what all come to where nothing is moved."""
    tokens = ec.alone(request, *others)
    ec.encode(request)
    return tokens


def _counts(ec: ZmqBench, wanted: float, metric: str, labels: dict[str, str]) -> bool:
    """Tell whether a metric is as high as that."""
    return ec.value(metric, **labels) >= wanted


@both
def test_two_pictures_are_moved(ec: ZmqBench) -> None:
    """The tokens are those of a run without transfers; metrics and one trace have probes and transfers."""
    request = ask(2)
    (expected,) = _encoded(ec, request)
    hits = {"connector": "ZmqECConnector", "peer": ec.peer, "result": "hit"}
    moved = {**_CHANNEL, "direction": "receive", "peer": ec.peer, "result": "ok"}
    ec.reach()
    before = [ec.value("penstock_cache_probes_total", **hits), ec.value("penstock_transfers_total", **moved)]

    answer = ec.send(request)

    assert answer.tokens == expected
    metrics = (("penstock_cache_probes_total", hits), ("penstock_transfers_total", moved))
    for (name, labels), earlier in zip(metrics, before, strict=True):
        until(partial(_counts, ec, earlier + 2, name, labels), f"{name} with {labels} does not count them")
    assert ec.span_of(request.name, "ec.probe").attributes["penstock.probe_result"] == "hit"
    load = ec.span_of(request.name, "ec.load")
    assert (load.status, load.attributes["penstock.peer"]) == ("unset", ec.peer)
    assert not ec.events("transfer_failure", request.name)


@both
def test_pictures_are_verified(ec: ZmqBench) -> None:
    """Under ``integrity`` each is compared with its producer's checksum before it is used, and nothing else differs."""
    for _ in range(_ATTEMPTS):
        request = ask(2)
        (expected,) = _encoded(ec, request)
        ec.enforce(integrity={"sampleRatio": 1.0, "action": "enforce"})
        assert ec.send(request).tokens == expected
        (found,) = ec.closed(request).request_closed.verifications
        assert (found.channel, found.peer.address) == (c.CHANNEL_EC, ec.peer)
        assert not ec.events("transfer_failure", request.name)
        # A worker that got no turn while it compared the first one leaves the second.
        if not found.unverified:
            break
        assert (found.ok, found.reason) == (1, "too much was to be compared in one step"), found
    assert (found.ok, found.mismatch, found.unverified) == (2, 0, 0), found
    labels = {**_CHANNEL, "result": "ok", "peer": ec.peer}
    until(
        lambda: ec.value("penstock_verified_transfers_total", **labels) >= 2,
        "The verified items are not counted",
    )


@both
def test_a_cut_transfer_is_encoded_here(ec: ZmqBench, senders: ThreadPoolExecutor) -> None:
    """The tokens are right, and so are those of who shares picture or prefix with it, and of who has nothing to do with it."""
    request, stranger = ask(), ask(0)
    sharer, follower = request.beside(" What is it?"), request.again(" And so on?")
    expected = _encoded(ec, request, sharer, stranger, follower)
    ec.enforce(ecLoadFailure={"action": "recompute"})

    answers = ec.cut(request, senders, sharer, stranger)

    assert [answer.tokens for answer in answers] == expected[:3]
    assert ec.send(follower).tokens == expected[3]
    outcome = ec.outcome(request)
    assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_POLICY)
    assert (outcome.channel, outcome.peer.address) == (c.CHANNEL_EC, ec.peer)
    assert (outcome.items_recomputed, outcome.error_type) == (1, c.ERROR_TYPE_REMOTE_RESET)
    assert ec.span_of(request.name, "ec.load").status == "error"
    assert ec.span_of(request.name, "penstock.recompute").attributes["penstock.items_recomputed"] == "1"
    for bystander in (stranger, follower):
        assert not ec.events("load_outcome", bystander.name)


@both
def test_one_of_two_pictures_is_lost(ec: ZmqBench, senders: ThreadPoolExecutor) -> None:
    """The first one came before the cut; the second is encoded here."""
    request = ask(2)
    (expected,) = _encoded(ec, request)
    ec.enforce(ecLoadFailure={"action": "recompute"})

    (answer,) = ec.cut(request, senders, after=INTO_THE_SECOND)

    assert answer.tokens == expected
    assert ec.outcome(request).items_recomputed == 1


@both
def test_fail_is_a_503_that_says_why(ec: ZmqBench, senders: ThreadPoolExecutor) -> None:
    """By the connector's own setting and by policy; a change takes effect on the running engine; others are served."""
    own, policy, recomputed, stranger = ask(), ask(), ask(), ask()
    expected = _encoded(ec, recomputed, stranger)
    for request in (own, policy, stranger):
        ec.encode(request)

    first, *_ = ec.cut(own, senders)
    ec.enforce(ecLoadFailure={"action": "fail"})
    second, beside = ec.cut(policy, senders, stranger)
    ec.enforce(ecLoadFailure={"action": "recompute"})
    (third,) = ec.cut(recomputed, senders)

    for answer, why in ((first, "the connector's own default: fail"), (second, "ecLoadFailure.action: fail")):
        assert answer.status == 503
        message = answer.body["error"]["message"]
        assert all(part in message for part in ("EC load failure", ec.peer, why, "can be retried")), message
    told = [facts_of(answer.body["error"]) for answer in (first, second)]
    assert [(each["channel"], each["decided_by"]) for each in told] == [("ec", "vllm"), ("ec", "policy")]
    assert {each["peer"]["address"] for each in told} == {ec.peer}
    assert (beside.tokens, third.tokens) == (expected[1], expected[0])
    assert ec.outcome(own).decided_by == c.DECIDED_BY_VLLM
    assert ec.outcome(policy).decided_by == c.DECIDED_BY_POLICY
    ec.wait_value(1, "penstock_policy_action", **_CHANNEL, action="recompute")


@both
def test_others_are_served_while_one_waits(ec: ZmqBench, senders: ThreadPoolExecutor) -> None:
    """The gauges show it, and its start and end are one event each."""
    request, stranger, after = ask(), ask(), ask(0)
    expected = _encoded(ec, request, stranger, after)

    with ec.held(request, senders) as waiting:
        assert ec.send(after).tokens == expected[2]
        labels = {"reason": "encoder_cache", "peer": ec.peer}
        ec.wait_value(1, "penstock_deferred_requests", **labels)
        ec.wait_value(1, "penstock_transfers_in_flight", **_CHANNEL, peer=ec.peer)
        assert ec.value("penstock_oldest_deferral_start_timestamp_seconds", **labels) > 0
        assert not waiting.done()

    assert waiting.result().tokens == expected[0]
    end = ec.event("deferral_end", request.name).deferral_end
    assert (end.reason, end.ending) == (c.DEFERRAL_REASON_ENCODER_CACHE, c.DEFERRAL_ENDING_READY)
    # The fetcher's thread may begin before the scheduler has noted the wait.
    assert end.transfer_start_time_unix_nano > 0
    assert float(ec.span_of(request.name, "penstock.deferral").attributes["penstock.start_wait_seconds"]) >= 0
    assert [len(ec.events(kind, request.name)) for kind in ("deferral_start", "deferral_end")] == [1, 1]
    ec.wait_value(0, "penstock_deferred_requests", reason="encoder_cache")


@both
def test_a_deadline_holds_for_requests_that_wait_already(ec: ZmqBench, senders: ThreadPoolExecutor) -> None:
    """Set while they wait; first with recompute, then with fail."""
    recomputed, failed = ask(), ask()
    (expected,) = _encoded(ec, recomputed)
    ec.encode(failed)

    with ec.held(recomputed, senders) as waiting:
        until(lambda: ec.events("deferral_start", recomputed.name), "The request does not wait")
        ec.enforce(deferral={"maxTransferWait": "200ms", "onTimeout": "recompute"})
        assert waiting.result().tokens == expected
    ec.forget()
    with ec.held(failed, senders) as waiting:
        until(lambda: ec.events("deferral_start", failed.name), "The request does not wait")
        ec.enforce(deferral={"maxTransferWait": "200ms", "onTimeout": "fail"})
        answer = waiting.result()

    assert answer.status == 503
    assert "deferral.onTimeout: fail" in answer.body["error"]["message"]
    for request, kind in ((recomputed, c.OUTCOME_RECOMPUTED), (failed, c.OUTCOME_FAILED)):
        outcome = ec.outcome(request)
        assert (outcome.outcome, outcome.decided_by) == (kind, c.DECIDED_BY_DEADLINE)
        assert ec.event("deferral_end", request.name).deferral_end.ending == c.DEFERRAL_ENDING_TIMEOUT


@both
def test_a_start_that_does_not_come_has_a_deadline_of_its_own(
    ec: ZmqBench, senders: ThreadPoolExecutor
) -> None:
    """The encoder does not even answer the probe; maxTransferWait has nothing to say about that."""
    request = ask()
    (expected,) = _encoded(ec, request)
    ec.enforce(deferral={"maxStartWait": "200ms", "maxTransferWait": "1h", "onTimeout": "recompute"})
    ec.reach()

    ec.link.hold(0)
    try:
        answer = ec.send(request)
    finally:
        ec.link.bring_up()

    assert answer.tokens == expected
    assert ec.outcome(request).decided_by == c.DECIDED_BY_DEADLINE
    assert not ec.event("deferral_end", request.name).deferral_end.transfer_start_time_unix_nano


@both
def test_an_encoder_that_is_away_costs_a_probe(ec: ZmqBench) -> None:
    """No probe gets through: no failure of a load, no outcome, the picture is encoded here."""
    request = ask()
    (expected,) = _encoded(ec, request)
    ec.enforce(ecLoadFailure={"action": "fail"})

    ec.link.take_down()
    try:
        answer = ec.send(request)
    finally:
        ec.link.bring_up()

    assert answer.tokens == expected
    ec.closed(request)
    assert not ec.events("load_outcome", request.name)


@pytest.mark.long
@both
def test_random_trouble_on_the_link(ec: ZmqBench) -> None:
    """A few rounds of the soak: whatever happens to which transfer, the tokens are right."""
    soak = ZmqSoak(ec, seed=7)
    soak.run(5)
    assert not soak.wrong
    assert soak.counts["rounds"] == 5


@both
def test_an_item_that_was_evicted_meanwhile(ec: ZmqBench, senders: ThreadPoolExecutor) -> None:
    """The encoder answers the probe, and has let go of the picture when it is asked for it."""
    request = ask()
    ec.reach()
    (expected,) = _encoded(ec, request)
    ec.enforce(ecLoadFailure={"action": "recompute"})

    ec.link.hold(0)
    try:
        sent = senders.submit(ec.send, request)
        until(lambda: ec.link.held, "The encoder does not answer")
        ec.evict_all()
    finally:
        ec.link.bring_up()

    assert sent.result().tokens == expected
    outcome = ec.outcome(request)
    assert (outcome.outcome, outcome.mode) == (c.OUTCOME_RECOMPUTED, c.FAILURE_MODE_TRANSFER)
    assert (outcome.error_type, outcome.peer.address) == (c.ERROR_TYPE_EVICTED, ec.peer)
    assert {each.transfer_failure.error_type for each in ec.events("transfer_failure", request.name)} == {
        c.ERROR_TYPE_EVICTED
    }


@pytest.mark.parametrize(
    "served",
    [_AT_ONCE, pytest.param(ASYNC_FORK_TP2, marks=pytest.mark.long)],
    indirect=True,
    ids=["cpu", "async-fork-tp2"],
)
def test_a_request_without_media(ec: ZmqBench, senders: ThreadPoolExecutor) -> None:
    """It alone fails, with a retryable error; with its media it is answered.

    What the encoder has does not help: vLLM's requests of tokens do not say which places of a picture are embeddings, so
    for this model they ask for another number of rows (docs/upstream.md).
    """
    request, stranger = ask(), ask(0)
    expected = _encoded(ec, request, stranger)
    ec.enforce(ecLoadFailure={"action": "recompute"})

    bare = senders.submit(ec.send_bare, request)
    beside = ec.send(stranger)
    failed = bare.result()

    assert failed.status == HTTPStatus.SERVICE_UNAVAILABLE, failed.text
    message = failed.body["error"]["message"]
    assert all(part in message for part in ("EC load failure", "nor encoded here", "can be retried")), message
    assert ec.outcome(request).outcome == c.OUTCOME_FAILED
    assert beside.tokens == expected[1]
    assert ec.send(request.again()).tokens == expected[0]


@pytest.mark.parametrize(
    "served",
    [
        pytest.param(_AT_ONCE, id="at-once"),
        pytest.param(_BY_THE_FETCHER, id="by-the-fetcher", marks=pytest.mark.long),
    ],
    indirect=True,
)
def test_pictures_of_an_encoder_on_the_same_host(ec: ZmqBench, request: pytest.FixtureRequest) -> None:
    """They are copied out of its memory and verified; the connection carries less than one. Only where drills are allowed they wait."""
    waits = request.node.callspec.params["served"] is _BY_THE_FETCHER
    first = ask(1)
    _encoded(ec, first)
    ec.send(first)  # the encoder has answered where its memory is
    ec.enforce(integrity={"sampleRatio": 1.0, "action": "enforce"})
    moved = {**_CHANNEL, "direction": "receive", "peer": ec.peer, "result": "ok"}
    for _ in range(_ATTEMPTS):
        pictures = ask(2)
        (expected,) = _encoded(ec, pictures)
        carried, counted = ec.link.carried, ec.value("penstock_transfers_total", **moved)
        assert ec.send(pictures).tokens == expected
        assert ec.link.carried - carried < INTO_THE_FIRST
        wanted = counted + 2
        until(partial(_counts, ec, wanted, "penstock_transfers_total", moved), "The copies are not counted")
        (found,) = ec.closed(pictures).request_closed.verifications
        assert bool(ec.events("deferral_start", pictures.name)) == waits
        # A worker that got no turn while it compared the first one leaves the second.
        if not found.unverified:
            break
    assert (found.ok, found.mismatch, found.unverified) == (2, 0, 0), found


@pytest.mark.long
def test_the_demo(stack: EcStack) -> None:
    """What `make demo-ec` does, step by step; the encoder is killed twice and replaced once."""
    stack.encoder.prepare()  # it starts during the first steps
    good = good_request(stack)
    assert {"ec.probe", "ec.load", "penstock.request"} <= {span.name for span in good.spans}
    assert not any(span.error for span in good.spans)

    waited = deferred_request(stack)
    assert {sample.value for sample in waited.gauges} == {1}
    assert waited.other.tokens

    _, failed = failed_request(stack)
    assert failed.answer.status == 503
    assert (failed.outcome["outcome"], failed.outcome["peer"]["address"]) == ("failed", stack.link.address)
    assert stack.link.address in failed.answer.body["error"]["message"]

    assert set_policy(stack, "recompute").action[0].value == 1
    new_encoder(stack)

    question, recomputed = failed_request(stack)
    assert recomputed.outcome["outcome"] == "recomputed"
    assert recomputed.answer.tokens == encode_locally(stack, question)
    assert {"ec.probe", "ec.load", "penstock.recompute"} <= {span.name for span in recomputed.spans}
    assert not stack.agent.metrics().select("penstock_guard_errors_total")
