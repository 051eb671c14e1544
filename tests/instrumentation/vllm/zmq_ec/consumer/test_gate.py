"""A consumer that is kept from producers, and fault drills in its fetcher; over real sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.orders import SLOW, Drill
from penstock.instrumentation.vllm.naming.peers import Peer

from tests.support.ec.rig import MODEL, Notes, feature, publisher, request, rig, tensor, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.instrumentation.vllm.zmq_ec.producer.worker import ProducerWorker

    from tests.support.ec.rig import Rig

OTHER = "127.0.0.1:1"  # no listener


def drill(mode: int, peer: str = "", delay_ns: int = 0) -> Callable[[int, str], Drill | None]:
    """Return what chooses every attempt at *mode* (with *peer*)."""
    found = Drill("d1", c.CHANNEL_EC, mode, 1.0, 60_000_000_000, peer, delay_ns)
    return lambda each, address: found if each == mode and peer in {"", address} else None


def test_candidates(producer: ProducerWorker) -> None:
    """They are the producers that would be asked: none for what is known, on its way, encoded here or not to be fetched."""
    address = producer.server.address
    with rig(address, OTHER, allow_request_producers=True) as rigged:
        consumer = rigged.consumer
        asked = request("r", feature("a", 4))
        assert consumer.candidates(asked, asked.mm_features[0]) == (address, OTHER)
        named = request("n", feature("a", 4), params={"a": {"peer_host": "127.0.0.1", "peer_port": 9}})
        assert consumer.candidates(named, named.mm_features[0]) == ("127.0.0.1:9", address, OTHER)
        producer.save("a", tensor(4))
        assert not consumer.ensure(asked, 0)
        assert consumer.candidates(asked, asked.mm_features[0]) == ()
        rigged.wait(asked)
        assert consumer.candidates(asked, asked.mm_features[0]) == ()
        resident = request("r", feature("b", 4))
        consumer.on_allocated("b", "r")
        consumer.end_step([])
        assert consumer.candidates(resident, resident.mm_features[0]) == ()
        endless = request("r", feature("x" * 100_000, 4))
        assert consumer.candidates(endless, endless.mm_features[0]) == ()


def test_a_producer_that_is_cut_off_is_not_asked(producer: ProducerWorker) -> None:
    """Only the others are, also when the attempt is made again; with none, nothing is asked and the item is encoded here."""
    with publisher() as other, rig(producer.server.address, other.server.address) as rigged:
        consumer, notes = rigged.consumer, Notes()
        consumer.observe(notes)
        for each in (producer, other):
            each.save("a", tensor(4))
            each.save("b", tensor(4))
        asked = request("r", feature("a", 4))
        consumer.keep_to("r", "a", (other.server.address,))
        assert not consumer.ensure(asked, 0)
        assert consumer.items.peer_of("a") == Peer(other.server.address)
        rigged.wait(asked)
        assert {peer for _, peer, _ in notes.probes} == {other.server.address}
        assert consumer.connected == {other.server.address}
        nobody = request("r", feature("b", 4))
        consumer.keep_to("r", "b", ())
        assert consumer.ensure(nobody, 0)
        assert not consumer.has("b")
        assert len(notes.probes) == 1
        # It held for one call.
        assert not consumer.ensure(nobody, 0)


def test_what_a_refused_request_may_not_ask_is_of_no_other(producer: ProducerWorker, consumer: Rig) -> None:
    """A request that is refused is not asked about; the next one that needs the item may ask for it."""
    producer.save("a", tensor(4))
    consumer.consumer.keep_to("refused", "a", ())
    other = request("r", feature("a", 4, media=False))
    assert not consumer.consumer.ensure(other, 0)
    consumer.wait(other)
    assert consumer.consumer.has("a")
    assert not consumer.consumer.drain_unavailable()


def test_a_request_without_media_that_may_ask_nobody_fails(consumer: Rig) -> None:
    """It can neither load nor encode the item."""
    asked = request("r", feature("a", 4, media=False))
    consumer.consumer.keep_to("r", "a", ())
    assert not consumer.consumer.ensure(asked, 0)
    assert consumer.consumer.drain_unavailable() == {"r"}


@pytest.mark.parametrize(
    ("rows", "model", "blameless"),
    [(5, MODEL, True), (4, b"another model 00", False)],
    ids=["of another shape", "of another model"],
)
def test_whose_fault_it_is(rows: int, model: bytes, blameless: bool) -> None:
    """An item of another shape under the same name is a request's doing; another model is the producer's."""
    with publisher(model=model) as made:
        made.save("a", tensor(4))
        with rig(made.server.address) as rigged:
            notes = Notes()
            rigged.consumer.observe(notes)
            rigged.wait(request("r", feature("a", rows)))
            (failure,) = notes.failures
            assert failure.error_type == c.ERROR_TYPE_INCOMPATIBLE
            assert failure.blameless is blameless


def test_a_drill_of_probes(producer: ProducerWorker, consumer: Rig, notes: Notes) -> None:
    """The producer is not asked, the failure is marked, and the item is encoded here."""
    producer.save("a", tensor(4))
    consumer.consumer.rehearse(drill(c.FAILURE_MODE_PROBE))
    consumer.wait(request("r", feature("a", 4)))
    assert not consumer.consumer.has("a")
    (failure,) = notes.failures
    assert (failure.mode, failure.rehearsal, failure.text) == (c.FAILURE_MODE_PROBE, True, "drill d1")
    assert failure.peer is not None
    assert failure.peer.address == producer.server.address
    assert producer.server._responder.counts.get("have", 0) == 0


def test_a_drill_of_transfers(producer: ProducerWorker, consumer: Rig, notes: Notes) -> None:
    """The transfer fails when it is complete, is tried again, and is given up as a real one is."""
    producer.save("a", tensor(4))
    consumer.consumer.rehearse(drill(c.FAILURE_MODE_TRANSFER, producer.server.address))
    asked = request("r", feature("a", 4))
    consumer.consumer.ensure(asked, 0)
    (failed,) = wait_for(consumer.consumer.drain_failures)
    assert (failed.mode, failed.error_type, failed.rehearsal) == (
        c.FAILURE_MODE_TRANSFER,
        c.ERROR_TYPE_OTHER,
        True,
    )
    assert [each.rehearsal for each in notes.failures] == [True, True]
    assert [each.ok for each in notes.transfers] == [False, False]
    assert not consumer.consumer.has("a")


def test_a_drill_that_is_slow(producer: ProducerWorker, consumer: Rig, notes: Notes) -> None:
    """The item comes whole, not before the drill's delay, and it is known that the drill holds it."""
    producer.save("a", tensor(4))
    consumer.consumer.rehearse(drill(SLOW, delay_ns=200_000_000))
    asked = request("r", feature("a", 4))
    consumer.consumer.ensure(asked, 0)
    wait_for(lambda: consumer.consumer.items.is_rehearsed("a"))
    consumer.wait(asked)
    (transfer,) = notes.transfers
    assert transfer.ok
    assert transfer.end_ns - transfer.start_ns >= 200_000_000
    assert not notes.failures


def test_a_drill_that_is_slower_than_the_connector_waits(producer: ProducerWorker) -> None:
    """The transfer then fails by the connector's own time-out, and that is marked."""
    producer.save("a", tensor(4))
    with rig(producer.server.address, transfer_timeout=0.05, retries=0) as rigged:
        notes = Notes()
        rigged.consumer.observe(notes)
        rigged.consumer.rehearse(drill(SLOW, delay_ns=60_000_000_000))
        rigged.consumer.ensure(request("r", feature("a", 4)), 0)
        (failed,) = wait_for(rigged.consumer.drain_failures)
        assert (failed.mode, failed.rehearsal) == (c.FAILURE_MODE_TIMEOUT, True)


def test_who_answers_is_connected(producer: ProducerWorker, consumer: Rig) -> None:
    """Until its connection is lost; one that never answered is not."""
    assert not consumer.consumer.connected
    consumer.settle(request("r", feature("a", 4)))
    assert consumer.consumer.connected == {producer.server.address}
    producer.close()
    wait_for(lambda: not consumer.consumer.connected)
