"""Items that wait for room in the shared region, and those in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tests.support.ec.rig import feature, request, rig, tensor, wait_for

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.zmq_ec.producer.worker import ProducerWorker


def test_the_region_is_reused_and_never_grows(producer: ProducerWorker) -> None:
    """Old items make room for new ones; each is right when it is loaded."""
    with rig(producer.server.address, region_bytes=1 << 20) as consumer:
        for index in range(30):
            sent = tensor(300, seed=index)
            producer.save(f"i{index}", sent)
            consumer.wait(request("r", feature(f"i{index}", 300)))
            assert torch.equal(consumer.load(f"i{index}")[0], sent)
        assert len(consumer.consumer._slots) <= 3


def test_an_item_that_waits_for_room_gets_it_when_a_step_is_done(producer: ProducerWorker) -> None:
    """Nothing that a step still loads is overwritten meanwhile."""
    with rig(producer.server.address, region_bytes=1 << 20, start_timeout=60.0) as consumer:
        for item in ("a", "b"):
            producer.save(item, tensor(700, seed=ord(item)))
        consumer.wait(request("r", feature("a", 700)))
        orders = consumer.orders("a")
        asked = request("q", feature("b", 700))
        wait_for(
            lambda: not consumer.consumer.ensure(asked, 0) and consumer.consumer.items.orders.room_wanted
        )
        assert consumer.consumer.items.transfer_start("b") is None
        loader, cache = consumer.loaders[0], consumer.encoder_caches[0]
        loader.load(*orders, cache, "cpu")
        assert torch.equal(cache["a"], tensor(700, seed=ord("a")))
        report = loader.report()
        assert report is not None
        consumer.consumer.on_report(report)
        consumer.consumer.end_step([])
        consumer.wait(asked)
        assert torch.equal(consumer.load("b")[0], tensor(700, seed=ord("b")))


def test_no_room_for_too_long_is_encoded_here(producer: ProducerWorker) -> None:
    """As is an item that never fits."""
    with rig(producer.server.address, region_bytes=1 << 20, start_timeout=2.0) as consumer:
        producer.save("a", tensor(700))
        producer.save("b", tensor(700))
        producer.save("huge", tensor(2000))
        consumer.wait(request("r", feature("a", 700)))
        consumer.orders("a")  # and no report
        consumer.wait(request("q", feature("b", 700), feature("huge", 2000)))
        assert not consumer.consumer.has("b")
        assert not consumer.consumer.has("huge")


def test_two_ranks_must_have_loaded(producer: ProducerWorker) -> None:
    """A slot is in use until the last of them has."""
    with rig(producer.server.address, ranks=2) as consumer:
        producer.save("a", tensor(4))
        consumer.wait(request("r", feature("a", 4)))
        orders = consumer.orders("a")
        (load,) = orders[0]
        for rank, loader in enumerate(consumer.loaders):
            slot = consumer.consumer._slots.get(load.slot.generation)
            assert slot is not None
            assert slot.reports_due == 2 - rank
            loader.load(*orders, consumer.encoder_caches[rank], "cpu")
            report = loader.report()
            assert report is not None
            consumer.consumer.on_report(report)
            assert torch.equal(consumer.encoder_caches[rank]["a"], tensor(4))
        assert slot is not None
        assert slot.reports_due == 0
