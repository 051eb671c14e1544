"""Pushes of ECMooncakeConnector as both sides report them: good ones, refused ones, those that break."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.compat import forget_embeds

from demo.common.steps import until
from demo.servers import LOOPBACK
from tests.support.ec.decisions import OUTPUTS, image
from tests.support.ec.fake_ec import expected
from tests.support.ec.mooncake import NBYTES, MemoryEngine, expects, transfer_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakePair = Callable[..., Any]

pytestmark = pytest.mark.filterwarnings("ignore:Unclosed socket:ResourceWarning")
KINDS = pytest.mark.parametrize("kind", ["sync", "async"])
SENT, RECEIVED = c.DIRECTION_SEND, c.DIRECTION_RECEIVE


def samples(recorder: Recorder, direction: int) -> list[dict[str, Any]]:
    """Return the transfers of that direction."""
    return [each for each in recorder.transfers if each["direction"] == direction]


@KINDS
def test_a_push_is_reported_on_both_sides(kind: str, make_pair: MakePair, recorder: Recorder) -> None:
    """Peer, bytes and request, from the producer and from the consumer; the wait ends with the peer; the tokens are right."""
    pair = make_pair(kind)
    first = expects(image("first", "a", "b"))
    pair.engine.scheduler.add_request(first)
    pair.engine.step()
    pair.push("first", "a", "b")
    pair.engine.run_off()
    assert pair.engine.outputs["first"] == expected(first, OUTPUTS)
    assert (sorted(pair.engine.loaded), pair.engine.encoded) == (["a", "b"], [])
    sent, received = samples(recorder, SENT), samples(recorder, RECEIVED)
    consumer = f"{LOOPBACK}:{pair.port}"
    assert [(each["peer"], each["bytes"], each["request_id"]) for each in sent] == [
        (consumer, NBYTES, "first")
    ] * 2
    producer = pair.producer.connector._worker._control_client._penstock_name
    assert [(each["peer"], each["bytes"], each["request_id"]) for each in received] == [
        (producer.address, NBYTES, "first")
    ] * 2
    assert {each["result"] for each in recorder.transfers} == {c.TRANSFER_RESULT_OK}
    assert {each["connector"] for each in recorder.transfers} == {"ECMooncakeConnector"}
    (end,) = recorder.take("deferral_end", "first")
    assert (end.ending, end.peer.address) == (c.DEFERRAL_ENDING_READY, producer.address)
    assert end.transfer_start_time_unix_nano
    assert [each["result"] for each in recorder.probes] == [c.PROBE_RESULT_HIT] * 2
    assert not recorder.take("transfer_failure")
    assert not recorder.take("load_outcome")
    assert not pair.engine.worker._penstock_worker._failures


def test_what_is_reserved_is_in_flight(make_pair: MakePair, recorder: Recorder) -> None:
    """From the reservation to the last byte the consumer's worker says so; the scheduler says that the request waits."""
    pair = make_pair()
    pair.engine.scheduler.add_request(expects(image("first", "a")))
    pair.engine.step()
    pair.producer.push("first", "a", to=pair.port, encoded=False)
    until(lambda: list(recorder.snapshot().in_flight), "no reservation is in flight")
    (gauge,) = recorder.snapshot().in_flight
    assert (gauge.channel, gauge.connector, gauge.count) == (c.CHANNEL_EC, "ECMooncakeConnector", 1)
    assert gauge.component == c.COMPONENT_WORKER
    (deferred,) = recorder.snapshot().deferred
    assert (deferred.reason, deferred.count) == (c.DEFERRAL_REASON_ENCODER_CACHE, 1)
    pair.producer.step("a")
    pair.producer.end()
    pair.engine.run_off()
    assert not recorder.snapshot().in_flight
    assert len(samples(recorder, RECEIVED)) == 1


def test_an_item_in_the_pool_is_handed_over(make_pair: MakePair, recorder: Recorder) -> None:
    """What the consumer's pool still has is used again: nothing moves, so no transfer is reported."""
    pair = make_pair()
    pair.push("first", "a")
    pair.engine.scheduler.add_request(expects(image("first", "a")))
    pair.engine.run_off()
    before = len(recorder.transfers)
    manager = pair.engine.scheduler.encoder_cache_manager
    for item, rows in list(manager.freeable.items()):
        del manager.freeable[item], manager.cached[item]
        forget_embeds(manager, item)
        manager.num_free_slots += rows
        manager.freed.append(item)
    again = expects(image("again", "a", first=77))
    pair.engine.scheduler.add_request(again)
    pair.engine.run_off()
    assert pair.engine.outputs["again"] == expected(again, OUTPUTS)
    assert pair.engine.encoded == []
    assert len(recorder.transfers) == before


def test_a_write_that_fails(make_pair: MakePair, recorder: Recorder) -> None:
    """The producer says which consumer and why; the consumer, that the producer gave it up, and nothing is in flight any more."""
    pair = make_pair()
    MemoryEngine.broken.add(pair.engine.worker._worker._transfer.local_session())
    pair.push("first", "a")
    until(lambda: len(recorder.take("transfer_failure")) >= 2, "only one side has reported it")
    by_direction = {each.direction: each for each in recorder.take("transfer_failure")}
    sent, received = by_direction[SENT], by_direction[RECEIVED]
    assert (sent.mode, sent.peer.address) == (c.FAILURE_MODE_TRANSFER, f"{LOOPBACK}:{pair.port}")
    assert "failed with status -1" in sent.error_text
    assert (received.mode, received.item) == (c.FAILURE_MODE_TRANSFER, "a")
    assert received.peer.address == pair.producer.connector._worker._control_client._penstock_name.address
    assert {each["result"] for each in recorder.transfers} == {c.TRANSFER_RESULT_ERROR}
    assert not recorder.snapshot().in_flight


def test_a_consumer_that_is_gone(make_pair: MakePair, recorder: Recorder) -> None:
    """Nothing could be reserved: mode setup, and no transfer."""
    pair = make_pair(control_timeout_s=0.2)
    gone = pair.port + 1 if pair.port < 65_535 else pair.port - 1
    pair.producer.push("first", "a", to=gone)
    pair.producer.end()
    (failure,) = recorder.take("transfer_failure")
    assert (failure.mode, failure.direction) == (c.FAILURE_MODE_SETUP, SENT)
    assert (failure.peer.address, failure.item) == (f"{LOOPBACK}:{gone}", "a")
    assert not recorder.transfers


def test_a_pool_that_is_full(make_pair: MakePair, recorder: Recorder) -> None:
    """The consumer's worker says that it had no room, and for whom; so does the producer."""
    pair = make_pair()
    items = [f"item{number}" for number in range((1 << 20) // NBYTES + 2)]
    pair.producer.push("first", *items, to=pair.port, encoded=False)
    until(
        lambda: {each.direction for each in recorder.take("transfer_failure")} == {SENT, RECEIVED},
        "a full pool is not reported",
    )
    refused = next(each for each in recorder.take("transfer_failure") if each.direction == RECEIVED)
    assert (refused.mode, refused.error_class) == (c.FAILURE_MODE_SETUP, "RuntimeError")
    assert "pool is full" in refused.error_text


def test_a_client_that_leaves(make_pair: MakePair, recorder: Recorder) -> None:
    """A push that no request awaits any more is a transfer all the same, without a request; the wait ends."""
    from tests.support.ec.fake_ec import LEFT

    pair = make_pair()
    scheduler = pair.engine.scheduler
    scheduler.add_request(expects(image("leaving", "a")))
    pair.engine.step()
    pair.producer.push("leaving", "a", to=pair.port, encoded=False)
    until(lambda: list(recorder.snapshot().in_flight), "no reservation is in flight")
    scheduler.finish_requests("leaving", LEFT)
    record = pair.reservations._records[transfer_of("leaving", "a")]
    until(lambda: record.state.name == "CANCEL_PENDING", "the consumer does not cancel it")
    pair.producer.step("a")
    pair.producer.end()
    (received,) = samples(recorder, RECEIVED)
    assert (received["result"], received["request_id"]) == (c.TRANSFER_RESULT_OK, "")
    assert [each.ending for each in recorder.take("deferral_end")] == [c.DEFERRAL_ENDING_ABORTED]
    assert not recorder.snapshot().in_flight


def test_a_consumer_without_penstock(make_pair: MakePair, recorder: Recorder) -> None:
    """It ignores the name that a producer adds to its reservations, of one item or several; its tokens are right."""
    pair = make_pair(bare=True)
    assert pair.producer.connector._worker._control_client._penstock_name is not None
    one, two = expects(image("one", "a")), expects(image("two", "b", "c", first=77))
    pair.engine.scheduler.add_request(one)
    pair.engine.scheduler.add_request(two)
    pair.push("one", "a")
    pair.push("two", "b", "c")
    pair.engine.run_off()
    for request in (one, two):
        assert pair.engine.outputs[request.request_id] == expected(request, OUTPUTS)
    assert sorted(pair.engine.loaded) == ["a", "b", "c"]
    assert not pair.engine.errors
    assert {each["direction"] for each in recorder.transfers} == {c.DIRECTION_SEND}
    assert not recorder.take("transfer_failure")
