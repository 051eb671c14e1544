"""Items from a producer's host cache to a worker's encoder cache, over real sockets and shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.zmq_ec.wire import protocol

from tests.support.ec.rig import HIDDEN, MODEL, Notes, Rig, feature, publisher, request, rig, tensor, wait_for

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.zmq_ec.producer.worker import ProducerWorker

FREE = "127.0.0.1:1"  # no listener


@pytest.mark.parametrize("rows", [1, 63, 1024, 2500])
def test_an_item_arrives_as_it_was(producer: ProducerWorker, consumer: Rig, rows: int) -> None:
    """Of less than a chunk, of chunks exactly, and of several and a bit."""
    sent = tensor(rows, seed=rows)
    producer.save("a", sent)
    consumer.wait(request("r", feature("a", rows)))
    (loaded,) = consumer.load("a")
    assert torch.equal(loaded, sent)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_element_types_without_a_name_in_numpy_travel_too(
    producer: ProducerWorker, dtype: torch.dtype
) -> None:
    """Bytes are moved, not numbers."""
    sent = tensor(5, dtype=dtype)
    producer.save("a", sent)
    with rig(producer.server.address, dtype=str(dtype).removeprefix("torch.")) as consumer:
        consumer.wait(request("r", feature("a", 5)))
        (loaded,) = consumer.load("a")
        assert loaded.dtype == dtype
        assert torch.equal(loaded, sent)


def test_a_view_is_saved_as_its_own_bytes(producer: ProducerWorker, consumer: Rig) -> None:
    """VLLM hands out slices of a batch; later changes of that memory do not reach consumers."""
    batch = tensor(8)
    part = batch[2:5]
    producer.save("a", part)
    expected = part.clone()
    batch.zero_()
    consumer.wait(request("r", feature("a", 3)))
    assert torch.equal(consumer.load("a")[0], expected)


def test_several_items_of_several_requests(producer: ProducerWorker, consumer: Rig) -> None:
    """Each item arrives once, whichever request asks, and does not wait for another."""
    for index in range(20):
        producer.save(f"i{index}", tensor(7, seed=index))
    asked = [request(f"r{n}", *(feature(f"i{(n + k) % 20}", 7) for k in range(3))) for n in range(20)]
    for each in asked:
        consumer.wait(each)
    loaded = consumer.load(*(f"i{index}" for index in range(20)))
    for index, found in enumerate(loaded):
        assert torch.equal(found, tensor(7, seed=index))
    assert producer.server._responder.counts["chunk"] == 20


def test_only_what_is_beyond_the_computed_tokens_is_asked_for(
    producer: ProducerWorker, consumer: Rig
) -> None:
    """What the KV cache covers needs no embedding."""
    for item in "abc":
        producer.save(item, tensor(4))
    asked = request("r", feature("a", 4), feature("b", 4, offset=10), feature("c", 4, offset=20))
    consumer.settle(asked, computed=13)
    assert not consumer.consumer.has("a")
    assert consumer.consumer.has("b")  # its last token is not computed
    assert consumer.consumer.has("c")


def test_what_vllm_has_encoded_is_not_asked_for(producer: ProducerWorker, consumer: Rig) -> None:
    """Until vLLM's encoder cache lets go of it."""
    producer.save("a", tensor(4))
    asked = request("r", feature("a", 4))
    consumer.consumer.on_allocated("a", "other")
    consumer.consumer.end_step([])
    assert consumer.consumer.ensure(asked, 0)
    consumer.consumer.end_step(["a"])
    assert not consumer.consumer.ensure(asked, 0)
    consumer.wait(asked)
    assert consumer.consumer.has("a")


def test_what_vllm_has_forgotten_is_asked_for_again(producer: ProducerWorker, consumer: Rig) -> None:
    """It can empty its encoder cache without telling; the first item that it allocates anew shows that."""
    for item in "ab":
        producer.save(item, tensor(4))
        consumer.consumer.on_allocated(item, "other")
    consumer.consumer.end_step([])
    consumer.consumer.on_allocated("a", "r")
    consumer.consumer.end_step(["a"])  # evicted and allocated in one step: nothing is forgotten
    assert consumer.consumer.ensure(request("r", feature("b", 4)), 0)
    consumer.consumer.on_allocated("a", "r")
    consumer.consumer.end_step([])
    assert consumer.consumer.ensure(request("r", feature("a", 4)), 0)
    asked = request("r", feature("b", 4))
    assert not consumer.consumer.ensure(asked, 0)
    consumer.wait(asked)
    assert consumer.consumer.has("b")


def test_a_miss_is_encoded_here(consumer: Rig, notes: Notes) -> None:
    """The request goes on, nothing has failed, and soon it is asked for again."""
    asked = request("r", feature("a", 4))
    consumer.wait(asked)
    assert not consumer.consumer.has("a")
    assert [result for *_, result in notes.probes] == [c.PROBE_RESULT_MISS]
    assert notes.failures == []
    assert consumer.consumer.drain_failures() == []
    assert consumer.consumer.drain_unavailable() == set()


def test_a_miss_is_remembered_for_a_short_while(producer: ProducerWorker) -> None:
    """Polls do not become probes."""
    asked = request("r", feature("a", 4))
    with rig(producer.server.address, missing_for=60.0) as consumer:
        consumer.wait(asked)
        for _ in range(100):
            assert consumer.consumer.ensure(asked, 0)
        assert producer.server._responder.counts["miss"] == 1
    with rig(producer.server.address, missing_for=0.2) as consumer:
        consumer.wait(asked)
        producer.save("a", tensor(4))
        wait_for(lambda: consumer.consumer.ensure(asked, 0) and consumer.consumer.has("a"))


def test_nothing_can_be_had_without_media_or_producer(consumer: Rig) -> None:
    """A request that could not be encoded here is failed, by vLLM's own way, and only that one."""
    lost = request("lost", feature("a", 4, media=False))
    other = request("other", feature("a", 4))
    consumer.settle(lost)
    assert not consumer.consumer.ensure(lost, 0)
    assert consumer.consumer.ensure(other, 0)
    assert consumer.consumer.drain_unavailable() == {"lost"}
    assert consumer.consumer.drain_unavailable() == set()


def test_a_request_without_media_does_not_rely_on_vllms_cache(
    producer: ProducerWorker, consumer: Rig
) -> None:
    """VLLM may let go of the item for the request's next one, so it is fetched too; if no peer has it, only its own copy will do."""
    producer.save("a", tensor(4))
    consumer.consumer.on_allocated("a", "r")
    consumer.consumer.on_allocated("b", "r")
    blind = request("r", feature("a", 4, media=False), feature("b", 4, media=False))
    assert not consumer.consumer.ensure(blind, 0)
    consumer.wait(blind)
    assert consumer.consumer.has("a")
    assert not consumer.consumer.has("b")
    assert consumer.consumer.drain_unavailable() == set()


def test_what_vllm_keeps_for_others_is_no_promise(consumer: Rig) -> None:
    """VLLM does not report when it frees the item, and a request without media that is scheduled then would end the engine."""
    blind = request("blind", feature("a", 4, media=False))
    consumer.consumer.on_allocated("a", "other")
    consumer.settle(blind)
    assert not consumer.consumer.ensure(blind, 0)
    assert consumer.consumer.drain_unavailable() == {"blind"}
    holder = request("holder", feature("a", 4, media=False))
    consumer.consumer.on_allocated("a", "holder")
    assert consumer.consumer.ensure(holder, 0)
    consumer.consumer.end_step([])
    consumer.consumer.end_step(["a"])
    assert not consumer.consumer.ensure(holder, 0)
    consumer.consumer.on_finished("holder")
    assert consumer.consumer._held == {"other": set()}


@pytest.mark.parametrize(
    ("model", "rows", "dtype", "why"),
    [
        (protocol.model_digest("other", HIDDEN), 4, "float32", "another model"),
        (MODEL, 5, "float32", "4 rows, not 5"),
        (MODEL, 4, "float16", "float32, not float16"),
    ],
)
def test_an_item_that_does_not_fit_is_not_loaded(model: bytes, rows: int, dtype: str, why: str) -> None:
    """It is found out before scheduling, told as a failed probe, and encoded here."""
    with publisher(model=model) as producer, rig(producer.server.address, dtype=dtype) as consumer:
        notes = Notes()
        consumer.consumer.observe(notes)
        producer.save("a", tensor(4))
        consumer.wait(request("r", feature("a", rows)))
        assert not consumer.consumer.has("a")
        (failure,) = notes.failures
        assert failure.mode == c.FAILURE_MODE_PROBE
        assert failure.error_type == c.ERROR_TYPE_INCOMPATIBLE
        assert why in failure.text
        assert consumer.consumer.drain_failures() == []


def test_deepstack_items_are_wider_than_the_embeddings(producer: ProducerWorker, consumer: Rig) -> None:
    """A multiple of the width is an item too, anything else is none."""
    wide, odd = torch.randn(4, 3 * HIDDEN), torch.randn(4, HIDDEN + 1)
    producer.save("wide", wide)
    producer.save("odd", odd)
    consumer.settle(request("r", feature("wide", 4), feature("odd", 4)))
    assert not consumer.consumer.has("odd")
    assert torch.equal(consumer.load("wide")[0], wide)


def test_one_name_for_two_contents(producer: ProducerWorker, consumer: Rig) -> None:
    """A request for the other one does not get this one."""
    producer.save("a", tensor(4))
    consumer.wait(request("r", feature("a", 4)))
    assert consumer.consumer.has("a")
    assert consumer.consumer.ensure(request("q", feature("a", 5)), 0)
    assert not consumer.consumer.has("a")
    assert consumer.consumer.ensure(request("r", feature("a", 4)), 0)
    assert consumer.consumer.has("a")


def test_the_reported_loads(producer: ProducerWorker, consumer: Rig, notes: Notes) -> None:
    """A probe and a transfer, with peer, request, bytes and times; the producer tells that it handed the item out."""
    handed = Notes()
    producer.server.observer = handed
    producer.save("a", tensor(1500))
    consumer.wait(request("r", feature("a", 1500)))
    assert notes.probes == [("a", producer.server.address, c.PROBE_RESULT_HIT)]
    (transfer,) = notes.transfers
    assert (transfer.item, transfer.peer.address, transfer.bytes, transfer.ok, transfer.request_id) == (
        "a", producer.server.address, 1500 * HIDDEN * 4, True, "r",
    )  # fmt: skip
    assert 0 < transfer.start_ns <= transfer.end_ns
    assert consumer.consumer.items.peer_of("a") == transfer.peer
    (hand_out,) = wait_for(lambda: handed.hand_outs)
    assert (hand_out.item, hand_out.peer.address, hand_out.bytes) == ("a", "127.0.0.1", 1500 * HIDDEN * 4)


def test_what_is_given_up_is_not_loaded_again(producer: ProducerWorker, consumer: Rig) -> None:
    """Though the producer has it; a step that is loading it still can."""
    producer.save("a", tensor(4))
    asked = request("r", feature("a", 4))
    consumer.wait(asked)
    orders = consumer.orders("a")
    consumer.consumer.give_up("a")
    assert not consumer.consumer.has("a")
    consumer.consumer.end_step(["a"])
    assert consumer.consumer.ensure(asked, 0)
    consumer.loaders[0].load(*orders, consumer.encoder_caches[0], "cpu")
    assert torch.equal(consumer.encoder_caches[0]["a"], tensor(4))


def test_an_unknown_item_can_be_given_up(producer: ProducerWorker, consumer: Rig) -> None:
    """A caller may learn otherwise that it has to give up."""
    producer.save("a", tensor(4))
    consumer.consumer.give_up("a")
    assert consumer.consumer.ensure(request("r", feature("a", 4)), 0)
    assert not consumer.consumer.has("a")


def test_closing_twice_and_using_it_after(consumer: Rig) -> None:
    """A scheduler that shuts down may still be asked."""
    consumer.consumer.ensure(request("r", feature("a", 4)), 0)
    consumer.consumer.close()
    consumer.consumer.close()
    assert consumer.consumer.ensure(request("r", feature("b", 4)), 0)
    assert not consumer.consumer.has("b")
    assert consumer.consumer.end_step([]) == ((), None)
    consumer.consumer.give_up("a")
    assert consumer.consumer.items.in_flight() == []
