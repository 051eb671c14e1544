"""Copies on one host that do not go on, and producers whose memory cannot be used: what else they have still comes."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING, Any

import torch
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.zmq_ec.producer import host_cache
from penstock.instrumentation.vllm.zmq_ec.producer.responder import Reply, Responder
from penstock.instrumentation.vllm.zmq_ec.wire import protocol

from tests.support.ec.rig import (
    Notes,
    Rig,
    attach,
    feature,
    leave_unsealed,
    publisher,
    request,
    rig,
    tensor,
    wait_for,
)

if TYPE_CHECKING:
    import pytest
    from penstock.instrumentation.vllm.zmq_ec.producer.worker import ProducerWorker

ROWS = 3000  # several pieces
CAPACITY = 1 << 20


def observed(consumer: Rig) -> Notes:
    """Keep what the consumer reports; the test drains the failures."""
    notes = Notes()
    consumer.consumer.observe(notes)
    return notes


def source(consumer: Rig) -> Any:
    """Return the only producer that the consumer knows."""
    fetcher: Any = consumer.consumer._fetcher
    (known,) = fetcher._producers
    return known


def save_sealed(producer: ProducerWorker, item: str) -> None:
    """Save an item, and wait until all of it has fingerprints."""
    producer.save(item, tensor(4, seed=ord(item)))
    wait_for(lambda: producer.cache._items[item].printed)


def save_unsealed(producer: ProducerWorker, item: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save an item whose place in the queue of those to be sealed is lost."""
    with monkeypatch.context() as lost:
        leave_unsealed(producer, lost)
        producer.save(item, tensor(ROWS))


def refuse_to_print(producer: ProducerWorker, item: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the producer fail whenever it computes the fingerprints of *item*."""
    printed = producer.cache.printed

    def broken(asked: str) -> protocol.Content | None:
        if asked == item:
            raise MemoryError
        return printed(asked)

    monkeypatch.setattr(producer.cache, "printed", broken)


def test_a_copy_whose_fingerprints_do_not_come_asks_for_them(
    producer: ProducerWorker, near: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on, out of the memory and on the same connection."""
    notes, before, connection = (
        observed(near),
        producer.server._responder.counts.copy(),
        source(near).connection,
    )
    save_unsealed(producer, "a", monkeypatch)
    near.wait(request("r", feature("a", ROWS)))
    assert torch.equal(near.load("a")[0], tensor(ROWS))
    assert producer.server._responder.counts["chunk"] == before["chunk"]
    assert [each.ok for each in notes.transfers] == [True]
    assert notes.failures == []
    assert source(near).connection is connection


def test_a_fingerprint_that_fails_keeps_no_other_waiting(
    producer: ProducerWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are computed in the same turn are."""
    refuse_to_print(producer, "a", monkeypatch)
    with monkeypatch.context() as later:
        later.setattr(host_cache, "SMALL", 0)
        later.setattr(producer.server, "seal", lambda item, _: producer.server._to_seal.append(item))
        producer.save("a", tensor(4))
        producer.save("b", tensor(4))
    producer.server.seal("a", tensor(4).nbytes)
    wait_for(lambda: producer.cache._items["b"].printed)


def test_a_copy_whose_fingerprints_never_come_fails_alone(
    producer: ProducerWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection stands, and others come on it out of the memory."""
    with rig(producer.server.address, same_host=True, retries=0) as near:
        attach(near, producer)
        notes, connection = observed(near), source(near).connection
        refuse_to_print(producer, "a", monkeypatch)
        producer.save("a", tensor(ROWS))
        object.__setattr__(near.consumer._settings, "idle_timeout", 0.2)
        near.settle(request("r", feature("a", ROWS)))
        object.__setattr__(near.consumer._settings, "idle_timeout", 30.0)
        (failure,) = near.consumer.drain_failures()
        assert (failure.item, failure.mode) == ("a", c.FAILURE_MODE_TIMEOUT)
        assert failure.error_type == c.ERROR_TYPE_TIMEOUT
        before = producer.server._responder.counts["chunk"]
        save_sealed(producer, "b")
        near.wait(request("s", feature("b", 4)))
        assert torch.equal(near.load("b")[0], tensor(4, seed=ord("b")))
        assert producer.server._responder.counts["chunk"] == before
        assert [each.ok for each in notes.transfers] == [False, True]
        assert source(near).connection is connection


def test_a_producer_that_gives_items_is_asked_for_several_again(
    producer: ProducerWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a probe without an answer; also where no message follows, because all items are in its memory."""
    with rig(producer.server.address, same_host=True, missing_for=0.01) as near:
        attach(near, producer)
        refuse_to_print(producer, "unanswered", monkeypatch)
        fetcher: Any = near.consumer._fetcher
        monkeypatch.setattr(fetcher._probes, "_timeout", 0.05)
        producer.save("unanswered", tensor(4))
        producer.cache._area.withdraw(producer.cache._items["unanswered"].slot)
        near.settle(request("r", feature("unanswered", 4)))
        assert source(near)._failing
        monkeypatch.setattr(fetcher._probes, "_timeout", 30.0)
        save_sealed(producer, "b")
        asked = request("s", feature("b", 4))
        wait_for(lambda: near.consumer.ensure(asked, 0) and near.consumer.has("b"))
        refuse_to_print(producer, "slow", monkeypatch)
        producer.save("slow", tensor(ROWS))
        slow = request("t", feature("slow", ROWS))
        wait_for(lambda: not near.consumer.ensure(slow, 0) and near.consumer.items.transfer_start("slow"))
        save_sealed(producer, "c")
        near.wait(request("u", feature("c", 4)))
        assert near.consumer.has("c")
        assert near.consumer.items.is_pending("slow")


def test_memories_that_cannot_be_opened_are_logged_once_a_cause(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However many producers answer so, and whatever numbers they choose."""
    caplog.set_level(logging.INFO, logger="vllm.penstock.zmq_ec")

    def elsewhere(self: Responder, asked: protocol.Attach) -> Reply:
        area = protocol.Area(asked.tag, 2**31, id(self) % 2**31, CAPACITY, bytes(16))
        return Reply([protocol.encode(area)])

    monkeypatch.setattr(Responder, "_attach", elsewhere)
    with publisher(CAPACITY) as first, publisher(CAPACITY) as second:
        addresses = {first.server.address, second.server.address}
        with rig(*addresses, same_host=True) as consumer:
            consumer.wait(request("r", feature("unknown", 4)))
            wait_for(lambda: consumer.consumer.connected == addresses)
    assert len([each for each in caplog.messages if "copied over the network" in each]) == 1


def test_a_memory_that_is_not_used_any_more_is_not_opened_again(producer: ProducerWorker, near: Rig) -> None:
    """A second answer on the same connection names it in vain."""
    connection, area = source(near).connection, producer.cache.area
    assert area is not None
    answer = protocol.Area(0, area.pid, area.fd, area.capacity, area.token)
    connection.detach()
    connection.attach(answer)
    assert connection.area is None


def test_a_fingerprint_that_was_not_asked_for_is_ignored(
    producer: ProducerWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer without the library could not compute it; another producer's item is taken."""
    answer = Responder.answer

    def always(self: Responder, frame: bytes) -> Reply:
        asked = protocol.decode_request(frame)
        content = self._cache.printed("a")
        if self is bad.server._responder and isinstance(asked, protocol.Probe) and content is not None:
            return Reply([protocol.encode(protocol.Have(asked.tag, asked.model, content))])
        return answer(self, frame)

    monkeypatch.setattr(Responder, "answer", always)
    with publisher() as bad:
        bad.save("a", tensor(4))
        monkeypatch.setattr(
            "penstock.instrumentation.vllm.zmq_ec.consumer.fetcher.fingerprints", _NoFingerprints
        )
        with rig(bad.server.address, producer.server.address) as consumer:
            notes = observed(consumer)
            assert not consumer.consumer.ensure(request("r", feature("a", 4)), 0)
            fetcher: Any = consumer.consumer._fetcher
            (lying,) = [each for each in fetcher._producers if each.peer.address == bad.server.address]
            wait_for(lambda: lying.connection is not None and lying.connection.malformed == 1)
            producer.save("b", tensor(4))
            consumer.wait(request("s", feature("b", 4)))
            assert torch.equal(consumer.load("b")[0], tensor(4))
            assert bad.server.address not in {peer for _, peer, _ in notes.probes}


class _NoFingerprints:
    """What a process without the library has."""

    @staticmethod
    def available() -> bool:
        """Return that there are none."""
        return False


def test_a_producer_without_a_descriptor_of_its_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its items come by message; one line says why."""
    caplog.set_level(logging.INFO, logger="vllm.penstock.zmq_ec")

    def refused(name: str, flags: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    with contextlib.ExitStack() as stack:
        with monkeypatch.context() as profile:
            profile.setattr(os, "memfd_create", refused)
            producer = stack.enter_context(publisher(8 << 20))
        consumer = stack.enter_context(rig(producer.server.address, same_host=True))
        attach(consumer, producer)
        producer.save("a", tensor(ROWS // 3))
        consumer.wait(request("r", feature("a", ROWS // 3)))
        assert torch.equal(consumer.load("a")[0], tensor(ROWS // 3))
        assert producer.server._responder.counts["chunk"] == 2
    assert [each for each in caplog.messages if "memory" in each] == [
        "ZmqECConnector: no consumer can copy items out of this memory: memfd_create: [Errno 1] Operation not permitted"
    ]
